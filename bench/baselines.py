"""What Forebay's speed is compared with: each is one whole program over the same JSONL files.

    python bench/baselines.py bare        --processes 2 --tokenizer T --to DIR FILES...
    python bench/baselines.py datasets    --processes 2 --tokenizer T --to DIR FILES...
    python bench/baselines.py datasets-gt --processes 2 --tokenizer T --to DIR FILES...

`bare` is the loop one would write without any framework: orjson, gigatoken, TensorStore, bounded
memory, whole outer chunks, nothing else (no rejects, no provenance, no checks, no commit).
`datasets` is Hugging Face `Dataset.map` with its usual fast tokenizer, `datasets-gt` the same with
gigatoken inside; both keep uint32 ids in Arrow.

The last line printed is JSON: records, tokens, and the times (seconds since the epoch) of the
first record and of the end of the work; `bench/build.py` reads it.
"""

import argparse
import json
import multiprocessing
import shutil
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

BATCH_BYTES = 4 << 20  # of JSONL in one call of the tokenizer
READ_CHUNK, OUTER_CHUNK = 4096, 4 << 20  # elements


@dataclass(frozen=True)
class Work:
    """What a contender did. Times are seconds since the epoch."""

    records: int
    tokens: int
    first_record: float
    end: float


def array_spec(path: Path, dtype: str, length: int) -> dict[str, Any]:
    codecs = [
        {"name": "bytes", "configuration": {"endian": "little"}},
        {"name": "zstd", "configuration": {"level": 1}},
        {"name": "crc32c"},
    ]
    sharding = {
        "name": "sharding_indexed",
        "configuration": {"chunk_shape": [READ_CHUNK], "codecs": codecs},
    }
    return {
        "driver": "zarr3",
        "kvstore": {"driver": "file", "path": f"{path}/"},
        "metadata": {
            "shape": [length],
            "data_type": dtype,
            "chunk_grid": {"name": "regular", "configuration": {"chunk_shape": [OUTER_CHUNK]}},
            "codecs": [sharding],
            "fill_value": 0,
        },
    }


class ArrayWriter:
    """Appends values and writes each outer chunk once, while the next one is filled."""

    def __init__(self, path: Path, dtype: str) -> None:
        import tensorstore as ts

        self.path, self.dtype, self.length = path, dtype, 0
        spec = array_spec(path, dtype, 1 << 40)
        self.array = ts.open(spec, open=True, assume_metadata=True).result()
        self.buffer, self.filled = np.empty(OUTER_CHUNK, dtype), 0
        self.pending: Any = None

    def append(self, values: np.ndarray) -> None:
        while len(values):
            count = min(OUTER_CHUNK - self.filled, len(values))
            self.buffer[self.filled : self.filled + count] = values[:count]
            self.filled += count
            values = values[count:]
            if self.filled == OUTER_CHUNK:
                self.flush()

    def flush(self) -> None:
        if self.pending is not None:
            self.pending.result()
        chunk = self.array[self.length : self.length + self.filled]
        self.pending = chunk.write(
            self.buffer[: self.filled], can_reference_source_data_indefinitely=True
        )
        self.length += self.filled
        self.buffer, self.filled = np.empty(OUTER_CHUNK, self.dtype), 0

    def close(self) -> None:
        import tensorstore as ts

        if self.filled:
            self.flush()
        if self.pending is not None:
            self.pending.result()
        spec = array_spec(self.path, self.dtype, self.length)
        ts.open(spec, create=True, open=True).result()  # zarr.json with the true shape


def batches(path: Path) -> Iterator[list[bytes]]:
    with path.open("rb", buffering=1 << 20) as file:
        while lines := file.readlines(BATCH_BYTES):
            yield lines


def tokenize_file(job: tuple[Path, str, Path]) -> Work:
    """One file -> ids and offsets. Runs in the main process or in a pool of processes."""
    path, tokenizer, to = job
    import orjson

    engine = gigatoken_engine(tokenizer)
    ids, offsets = (
        ArrayWriter(to / path.stem / "ids", "uint32"),
        ArrayWriter(to / path.stem / "offsets", "int64"),
    )
    first_record, records, tokens = time.time(), 0, 0
    offsets.append(np.zeros(1, np.int64))
    for lines in batches(path):
        layout = engine.encode_batch([orjson.loads(line)["text"] for line in lines]).layout
        ids.append(np.asarray(layout.content.data))
        offsets.append(np.asarray(layout.offsets.data)[1:] + tokens)
        records += len(lines)
        tokens += int(layout.offsets.data[-1])
    ids.close()
    offsets.close()
    return Work(records, tokens, first_record, time.time())


_engines: dict[str, Any] = {}


def gigatoken_engine(tokenizer: str) -> Any:
    """The tokenizer of this process, loaded once."""
    import gigatoken

    if tokenizer not in _engines:
        _engines[tokenizer] = gigatoken.Tokenizer(tokenizer)
    return _engines[tokenizer]


def bare(files: list[Path], tokenizer: str, to: Path, processes: int) -> Work:
    jobs = [(path, tokenizer, to) for path in sorted(files, key=lambda f: -f.stat().st_size)]
    if processes == 1:
        done = [tokenize_file(job) for job in jobs]
    else:
        with multiprocessing.get_context("spawn").Pool(processes) as pool:
            done = pool.map(tokenize_file, jobs, chunksize=1)
    return Work(
        sum(work.records for work in done),
        sum(work.tokens for work in done),
        min(work.first_record for work in done),
        max(work.end for work in done),
    )


def encode_usual(batch: dict[str, list[str]], engine: Any) -> dict[str, Any]:
    return {"input_ids": engine(batch["text"], return_attention_mask=False)["input_ids"]}


def encode_with_gigatoken(table: Any, tokenizer: str) -> Any:
    """An Arrow table of texts -> an Arrow table of ids, without a Python object per id."""
    import pyarrow as pa

    documents = table.column("text").to_pylist()
    layout = gigatoken_engine(tokenizer).encode_batch(documents).layout
    ids, offsets = np.asarray(layout.content.data), np.asarray(layout.offsets.data)
    return pa.table({"input_ids": pa.LargeListArray.from_arrays(offsets, ids)})


def datasets_map(files: list[Path], tokenizer: str, to: Path, processes: int, fast: bool) -> Work:
    """JSON -> Arrow -> map -> Arrow, as `datasets` does it; its intermediate files are removed."""
    import datasets

    datasets.disable_progress_bars()
    encode: Any
    arguments: dict[str, Any]
    if fast:
        encode, arguments = encode_with_gigatoken, {"tokenizer": tokenizer}
    else:
        from transformers import PreTrainedTokenizerFast

        engine = PreTrainedTokenizerFast(tokenizer_file=tokenizer)
        encode, arguments = encode_usual, {"engine": engine}
    first_record = time.time()
    text = datasets.Dataset.from_json([str(f) for f in files], cache_dir=str(to / "source"))
    mapped = text.with_format("arrow" if fast else None).map(
        encode,
        fn_kwargs=arguments,
        batched=True,
        num_proc=processes,
        remove_columns=text.column_names,
        features=datasets.Features({"input_ids": datasets.LargeList(datasets.Value("uint32"))}),
        cache_file_name=str(to / "ids.arrow"),
    )
    end = time.time()
    tokens = sum(len(chunk.flatten()) for chunk in mapped.data.column("input_ids").chunks)
    shutil.rmtree(to / "source")
    return Work(len(mapped), tokens, first_record, end)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("contender", choices=["bare", "datasets", "datasets-gt"])
    parser.add_argument("files", type=Path, nargs="+")
    parser.add_argument("--tokenizer", required=True, help="a tokenizer.json")
    parser.add_argument("--to", type=Path, required=True, help="folder of the output")
    parser.add_argument("--processes", type=int, default=2)
    options = parser.parse_args()
    if options.contender == "bare":
        work = bare(options.files, options.tokenizer, options.to, options.processes)
    else:
        fast = options.contender == "datasets-gt"
        work = datasets_map(options.files, options.tokenizer, options.to, options.processes, fast)
    print(json.dumps(vars(work)))


if __name__ == "__main__":
    main()
