"""The worst single documents: how long each takes on both tokenizer engines, and at what memory.

    python bench/documents.py --tokenizer tokenizer.json

Linear time shows as seconds that double with the size. Each row is measured in a process of its
own, so that its peak memory is that of the document.
"""

import argparse
import json
import random
import resource
import subprocess
import sys
import time

DOCUMENTS = {
    "one character, repeated": lambda size: "a" * size,
    "one emoji, repeated": lambda size: "\N{GRINNING FACE}" * (size // 4),
    "words without white space": lambda size: "".join(_words(size)),
    "random letters without white space": lambda size: "".join(
        random.Random(0).choices("abcdefghijklmnopqrstuvwxyz", k=size)
    ),
    "white space": lambda size: " \t\n" * (size // 3),
    "new words": lambda size: " ".join(_words(size)),
    "one rare character in plain text": lambda size: "\u1ae6" + "a turbine turns " * (size // 16),
}


def _words(size: int) -> list[str]:
    draw = random.Random(0)
    return ["".join(draw.choices("etaoinshrdlu", k=7)) for _ in range(size // 8)]


def measure(name: str, size: int, tokenizer: str, engine: str) -> dict[str, float]:
    """Seconds, tokens and MB of memory beyond the engine's own for one document."""
    from pipelines.tokenization import Policy, load_tokenizer, open_encoder, prepare
    from pipelines.tokenization.arrow import as_texts

    files = load_tokenizer(tokenizer)
    encoder = open_encoder(files, prepare(files, Policy()))
    text = as_texts([DOCUMENTS[name](size)])
    exact = engine == "hf"
    encoder.encode(as_texts(["a turbine turns"]), exact=exact)
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    start = time.perf_counter()
    tokens = len(encoder.encode(text, exact=exact).values)
    seconds = time.perf_counter() - start
    grown = (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) / 1024
    return {"seconds": seconds, "tokens": tokens, "memory": grown}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--tokenizer", required=True, help="a tokenizer.json")
    parser.add_argument("--size", type=int, default=1 << 20, help="bytes; also twice as many")
    parser.add_argument("--one", nargs=3, metavar=("NAME", "SIZE", "ENGINE"), help="used by itself")
    given = parser.parse_args()
    if given.one:
        name, size, engine = given.one
        print(json.dumps(measure(name, int(size), given.tokenizer, engine)))
        return
    print(
        f"{'document':36}{'engine':>10}{'bytes':>10}{'tokens':>10}{'seconds':>9}{'MB/s':>8}{'MB':>7}"
    )
    for name in DOCUMENTS:
        for engine in ("default", "hf"):
            for size in (given.size, 2 * given.size):
                command = [sys.executable, __file__, "--tokenizer", given.tokenizer]
                command += ["--one", name, str(size), engine]
                found = json.loads(subprocess.run(command, check=True, capture_output=True).stdout)
                print(
                    f"{name:36}{engine:>10}{size:>10,}{found['tokens']:>10,}"
                    f"{found['seconds']:>9.3f}{size / found['seconds'] / 1e6:>8.1f}"
                    f"{found['memory']:>7.0f}",
                    flush=True,
                )


if __name__ == "__main__":
    main()
