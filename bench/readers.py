"""What reading is compared on: each contender writes windows of ids its own way and reads them.

    python bench/readers.py NAME write IDS TO --length 2048      # from a raw file of uint32
    python bench/readers.py NAME random TO --rows 160000         # windows a second, random batches
    python bench/readers.py NAME loader TO                       # the same of its shuffled loader
    python bench/readers.py NAME first TO --skip 100             # the first batch after a resume

The last line printed is JSON; `bench/read.py` reads it. A contender that is not installed ends with
status 3.
"""

import argparse
import json
import resource
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

SEED = 0


@dataclass(frozen=True)
class Shape:
    """Windows of how many ids, and batches of how many windows."""

    length: int
    batch: int


class Memmap:
    """A raw file of ids; its loader goes through a permutation of all windows."""

    @staticmethod
    def write(windows: np.ndarray, to: Path) -> None:
        windows.tofile(to / "ids.bin")

    def __init__(self, to: Path, shape: Shape) -> None:
        ids = np.memmap(to / "ids.bin", np.uint32, "r")
        self.windows = ids.reshape(-1, shape.length)
        self.shape = shape

    def batch(self, indices: np.ndarray) -> np.ndarray:
        return self.windows[indices]

    def loader(self, skip: int) -> Iterator[np.ndarray]:
        order = np.random.default_rng(SEED).permutation(len(self.windows))
        for at in range(skip * self.shape.batch, len(order), self.shape.batch):
            yield self.windows[order[at : at + self.shape.batch]]


class Datasets:
    """Hugging Face `datasets`: fixed-size lists in Arrow, numpy format, `shuffle` and `iter`."""

    @staticmethod
    def write(windows: np.ndarray, to: Path) -> None:
        import datasets
        import pyarrow as pa

        datasets.disable_progress_bars()
        ids = pa.array(np.asarray(windows).reshape(-1))
        rows = pa.FixedSizeListArray.from_arrays(ids, windows.shape[1])
        datasets.Dataset(pa.table({"ids": rows})).save_to_disk(to / "arrow")

    def __init__(self, to: Path, shape: Shape) -> None:
        import datasets

        self.dataset = datasets.load_from_disk(to / "arrow").with_format("numpy")
        self.shape = shape

    def batch(self, indices: np.ndarray) -> np.ndarray:
        return np.asarray(self.dataset[indices]["ids"])

    def loader(self, skip: int) -> Iterator[np.ndarray]:
        shuffled = self.dataset.shuffle(seed=SEED, keep_in_memory=True)
        if skip:
            shuffled = shuffled.skip(skip * self.shape.batch)
        for batch in shuffled.iter(self.shape.batch):
            yield np.asarray(batch["ids"])


class Streaming:
    """MosaicML `StreamingDataset` over MDS shards, its own shuffle and resume."""

    @staticmethod
    def write(windows: np.ndarray, to: Path) -> None:
        from streaming import MDSWriter

        columns = {"ids": f"ndarray:uint32:{windows.shape[1]}"}
        with MDSWriter(out=str(to / "mds"), columns=columns) as writer:
            for window in windows:
                writer.write({"ids": window})

    def __init__(self, to: Path, shape: Shape) -> None:
        from streaming import StreamingDataset

        self.shape = shape
        self.dataset = StreamingDataset(
            local=str(to / "mds"), shuffle=True, shuffle_seed=SEED, batch_size=shape.batch
        )

    def batch(self, indices: np.ndarray) -> np.ndarray:
        return np.stack([self.dataset[int(i)]["ids"] for i in indices])

    def loader(self, skip: int) -> Iterator[np.ndarray]:
        if skip:
            self.dataset.load_state_dict(
                {
                    "epoch": 0,
                    "sample_in_epoch": skip * self.shape.batch,
                    "num_canonical_nodes": 1,
                    "shuffle_seed": SEED,
                    "initial_physical_nodes": 1,
                }
            )
        rows = []
        for row in self.dataset:
            rows.append(row["ids"])
            if len(rows) == self.shape.batch:
                yield np.stack(rows)
                rows = []


class Grain:
    """`grain` over ArrayRecord with its usual compression, global shuffle, its own threads."""

    @staticmethod
    def write(windows: np.ndarray, to: Path) -> None:
        from array_record.python.array_record_module import ArrayRecordWriter

        writer = ArrayRecordWriter(str(to / "ids.array_record"), "group_size:1")
        for window in windows:
            writer.write(window.tobytes())
        writer.close()

    def __init__(self, to: Path, shape: Shape) -> None:
        from array_record.python.array_record_data_source import ArrayRecordDataSource

        self.source = ArrayRecordDataSource(str(to / "ids.array_record"))
        self.shape = shape

    def batch(self, indices: np.ndarray) -> np.ndarray:
        records = self.source.__getitems__(indices.tolist())
        return np.stack([np.frombuffer(record, np.uint32) for record in records])

    def loader(self, skip: int) -> Iterator[np.ndarray]:
        import grain

        rows = grain.MapDataset.source(self.source).shuffle(seed=SEED)
        rows = rows.map(lambda record: np.frombuffer(record, np.uint32))
        batches = iter(rows.batch(self.shape.batch).to_iter_dataset())
        if skip:
            batches.set_state({**batches.get_state(), "next_index": skip})
        yield from batches


class Litdata:
    """`litdata`: `optimize` into its chunks, `StreamingDataset` with its own shuffle."""

    @staticmethod
    def write(windows: np.ndarray, to: Path) -> None:
        import litdata

        np.save(to / "windows.npy", windows)
        litdata.optimize(
            fn=_LitdataRows(str(to / "windows.npy")),
            inputs=list(range(len(windows))),
            output_dir=str(to / "chunks"),
            chunk_bytes="64MB",
            num_workers=1,
        )
        (to / "windows.npy").unlink()

    def __init__(self, to: Path, shape: Shape) -> None:
        import litdata

        self.shape = shape
        self.dataset = litdata.StreamingDataset(str(to / "chunks"), shuffle=True, seed=SEED)

    def batch(self, indices: np.ndarray) -> np.ndarray:
        return np.stack([np.asarray(self.dataset[int(i)]) for i in indices])

    def loader(self, skip: int) -> Iterator[np.ndarray]:
        from litdata import StreamingDataLoader

        loader = StreamingDataLoader(
            self.dataset, batch_size=self.shape.batch, num_workers=0, shuffle=True
        )
        if skip:
            state = loader.state_dict()
            state["num_samples_yielded"] = skip * self.shape.batch
            state["dataset"]["num_samples_yielded"] = skip * self.shape.batch
            loader.load_state_dict(state)
        for batch in loader:
            yield np.asarray(batch)


class _LitdataRows:
    def __init__(self, path: str) -> None:
        self.path = path
        self.windows: Any = None

    def __call__(self, index: int) -> np.ndarray:
        if self.windows is None:
            self.windows = np.load(self.path, mmap_mode="r")
        return np.array(self.windows[index])


class Forebay:
    """A Forebay cache with its full shuffle."""

    prefetch = 8

    def __init__(self, to: Path, shape: Shape) -> None:
        import cachelib

        self.windows = cachelib.open(to).windows(shape.length)
        self.shape = shape

    def batch(self, indices: np.ndarray) -> np.ndarray:
        return np.asarray(self.windows.take(indices)["tokens"])

    def shuffled(self) -> Any:
        return self.windows.shuffle(SEED)

    def loader(self, skip: int) -> Iterator[np.ndarray]:
        with self.shuffled().loader(self.shape.batch, start=skip, prefetch=self.prefetch) as loader:
            for batch in loader:
                yield batch["tokens"]


class ForebayBlocks(Forebay):
    """A Forebay cache with its block shuffle: 128 rows are 64 chunks; 16 such blocks."""

    def shuffled(self) -> Any:
        return self.windows.shuffle(SEED, block=128, window=16)


CONTENDERS: dict[str, Any] = {
    "memmap": Memmap,
    "datasets": Datasets,
    "streaming": Streaming,
    "grain": Grain,
    "litdata": Litdata,
    "forebay": Forebay,
    "forebay-blocks": ForebayBlocks,
}


def rate(next_batch: Callable[[], np.ndarray], shape: Shape, seconds: float) -> float:
    """Windows a second; the first batch, which starts threads, is not counted."""
    first = next_batch()
    assert first.shape == (shape.batch, shape.length), first.shape
    begin, batches = time.perf_counter(), 0
    while (now := time.perf_counter()) < begin + seconds:
        next_batch()
        batches += 1
    return batches * shape.batch / (now - begin)


def peak_memory() -> int:
    """Largest resident memory of this process and of a child, in bytes, mapped files included."""
    whose = (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)
    return sum(resource.getrusage(who).ru_maxrss << 10 for who in whose)


def endless(contender: Any) -> Iterator[np.ndarray]:
    while True:
        yield from (batch for batch in contender.loader(0) if len(batch) == contender.shape.batch)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("contender", choices=CONTENDERS)
    parser.add_argument("what", choices=["write", "random", "loader", "first"])
    parser.add_argument("paths", type=Path, nargs="+")
    parser.add_argument("--length", type=int, default=2048)
    parser.add_argument("--batch", type=int, default=64)
    parser.add_argument("--rows", type=int, default=0, help="windows there are")
    parser.add_argument("--skip", type=int, default=0, help="batches before the first")
    parser.add_argument("--seconds", type=float, default=5.0)
    options = parser.parse_args()
    shape = Shape(options.length, options.batch)
    kind = CONTENDERS[options.contender]
    found: dict[str, Any] = {}
    try:
        if options.what == "write":
            ids = np.memmap(options.paths[0], np.uint32, "r")
            kind.write(ids.reshape(-1, shape.length), options.paths[1])
        else:
            contender = kind(options.paths[0], shape)
    except ImportError as error:
        print(f"not installed: {error}", file=sys.stderr)
        raise SystemExit(3) from None
    if options.what == "first":
        next(iter(contender.loader(options.skip)))
        found["at"] = time.time()
    elif options.what == "random":
        rng = np.random.default_rng(SEED)
        found["rate"] = rate(
            lambda: contender.batch(rng.integers(0, options.rows, shape.batch)),
            shape,
            options.seconds,
        )
    elif options.what == "loader":
        batches = endless(contender)
        found["rate"] = rate(lambda: next(batches), shape, options.seconds)
    print(json.dumps({**found, "peak": peak_memory()}), flush=True)


if __name__ == "__main__":
    main()
