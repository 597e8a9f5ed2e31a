"""From text files to shuffled training batches: what `make quickstart` runs.

    python examples/quickstart.py --work quickstart

1. collect text that every machine has: the sources of the Python standard library
2. train a small tokenizer on it (bring your own for real work)
3. build a cache: tokenize the text into immutable shards
4. look at a row
5. train from it: shuffled batches of 512-token windows
6. stop, and resume exactly where it stopped
"""

import argparse
import json
import shlex
import shutil
import subprocess
import sys
import sysconfig
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

import cachelib

ENOUGH = 20_000_000  # bytes of text
VOCABULARY = 8192
WINDOW, BATCH = 512, 8


def step(title: str) -> None:
    print(f"\n== {title}", flush=True)


def forebay(*arguments: str | Path) -> None:
    """Run the command that this environment has installed, and show it."""
    words = [str(argument) for argument in arguments]
    print("$", shlex.join(["forebay", *words]), flush=True)
    command = Path(sys.executable).with_name("forebay")
    if not command.exists():
        sys.exit(f"{command} is not there: install Forebay first (pip install -e '.[pipelines]')")
    status = subprocess.run([command, *words]).returncode
    if status:
        sys.exit(status)


# 1. Text ------------------------------------------------------------------------------------------


def documents(root: Path) -> Iterator[tuple[str, dict[str, str]]]:
    """(name of the top-level package, record) of each Python file under a folder."""
    for path in sorted(root.rglob("*.py")):
        parts = path.relative_to(root).parts
        if "site-packages" in parts or "dist-packages" in parts:
            continue
        try:
            text = path.read_text("utf-8")
        except UnicodeDecodeError:
            continue  # some tests of the standard library are about other encodings
        package = parts[0].lstrip("_") if len(parts) > 1 else "modules"  # "_x" would be hidden
        yield package, {"text": text, "path": "/".join(parts)}


def collect(folder: Path) -> int:
    """One JSONL file a package, each line {"text": ..., "path": ...}; returns bytes of text."""
    shards: dict[str, list[str]] = defaultdict(list)
    total = 0
    for kind in ("stdlib", "purelib"):
        if total < ENOUGH:
            if kind == "purelib":
                print(f"only {total / 1e6:.1f} MB there; adding installed packages")
            for package, record in documents(Path(sysconfig.get_path(kind))):
                shards[package].append(json.dumps(record, ensure_ascii=False))
                total += len(record["text"].encode())
                if kind == "purelib" and total >= ENOUGH:
                    break
    folder.mkdir(parents=True)
    for package, lines in shards.items():
        (folder / f"{package}.jsonl").write_text("\n".join(lines) + "\n", "utf-8")
    count = sum(map(len, shards.values()))
    print(f"{count:,} documents, {total / 1e6:.1f} MB in {len(shards)} files under {folder}")
    return total


# 2. Tokenizer -------------------------------------------------------------------------------------


def train_tokenizer(text: Path, to: Path, total: int) -> None:
    """Train a byte-level BPE tokenizer on some 5 MB of the documents."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

    every = max(1, total // 5_000_000)
    lines = [line for path in sorted(text.iterdir()) for line in path.open(encoding="utf-8")]
    sample = (json.loads(line)["text"] for line in lines[::every])

    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=VOCABULARY,
        special_tokens=["<|endoftext|>"],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(sample, trainer)
    tokenizer.save(str(to))
    print(f"{tokenizer.get_vocab_size():,} tokens in {to}")


# 5 and 6. Training --------------------------------------------------------------------------------


def new_loader(cache: Path) -> Any:
    """Every window of 512 tokens once an epoch, in an order that depends on the seed alone."""
    return cachelib.open(str(cache)).windows(WINDOW).shuffle(seed=0).loader(batch_size=BATCH)


def train_and_resume(cache: Path, state: Path) -> None:
    loader = new_loader(cache)
    for number in range(3):
        tokens = next(loader)["tokens"]
        print(f"step {number}: tokens {tokens.dtype}{list(tokens.shape)}, first {tokens[0, :8]}")

    state.write_text(json.dumps(loader.state_dict()))
    print(f"state after 3 steps, {state.stat().st_size} bytes, saved in {state}")
    expected = [next(loader)["tokens"] for _ in range(5)]
    loader.close()
    del loader  # the job dies here

    step("6. Resume")
    loader = new_loader(cache)
    loader.load_state_dict(json.loads(state.read_text()))
    for number, tokens in enumerate(expected, start=3):
        if not np.array_equal(next(loader)["tokens"], tokens):
            sys.exit(f"step {number} after the resume differs from step {number} before it")
    loader.close()
    print(f"steps 3 to {2 + len(expected)} compared, before and after: the batches are the same")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--work", type=Path, default=Path("quickstart"), help="folder of the files")
    work = parser.parse_args().work
    text, tokenizer, cache = work / "text", work / "tokenizer.json", work / "cache"
    for folder in (text, cache):
        shutil.rmtree(folder, ignore_errors=True)

    step("1. Collect text")
    total = collect(text)

    step("2. Train a tokenizer")
    train_tokenizer(text, tokenizer, total)

    step("3. Build a cache")
    forebay(
        *("build", text / "*.jsonl", "--tokenizer", tokenizer, "--eos", "<|endoftext|>"),
        *("--keep", "path:str", "--to", cache, "--finish"),
    )

    step("4. Look at a row")
    forebay("head", cache, "-n", "1")

    step("5. Train: shuffled batches")
    train_and_resume(cache, work / "state.json")


if __name__ == "__main__":
    main()
