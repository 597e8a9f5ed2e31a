"""Makes the benchmark text: real documents as JSONL, from what every Debian machine has or can get.

    python bench/corpus.py --size 300MB        # -> bench/data/300MB/part-0.jsonl ... part-7.jsonl

Each line is {"text": ..., "path": ...}. Sources are taken in this order until the size is reached:
the Python standard library, Perl's modules, and the Debian packages of `PACKAGES` (kernel
documentation, Python documentation, kernel sources), fetched with `apt-get download` and unpacked
beside the output without installing anything. A document is a UTF-8 file; files with the same
content are taken once, and nothing is repeated to reach the size. The documents are shuffled with
a fixed seed, so that every part is the same mixture; the sizes of the parts are as 1:2:...:8.
"""

import argparse
import gzip
import hashlib
import json
import random
import re
import shutil
import subprocess
import sys
import sysconfig
from collections.abc import Iterator
from pathlib import Path

DATA = Path(__file__).resolve().parent / "data"
PACKAGES = ("linux-doc-6.1", "python3.11-doc", "linux-source-6.1")
PARTS = 8
SMALLEST, LARGEST = 200, 16 << 20  # bytes of a document
NOT_TEXT = {".svg", ".js", ".css", ".json", ".map", ".inv", ".info", ".devhelp"}
TABLES = "include/asic_reg"  # 400 MB of register numbers in the kernel sources, hardly text


def size_in_bytes(text: str) -> int:
    """'300MB' -> 300,000,000."""
    match = re.fullmatch(r"(\d+(?:\.\d+)?)(MB|GB)", text)
    if match is None:
        raise argparse.ArgumentTypeError(f"{text!r} is not a size such as 300MB or 1GB")
    return int(float(match[1]) * {"MB": 10**6, "GB": 10**9}[match[2]])


def perl_folders() -> list[Path]:
    if shutil.which("perl") is None:
        return []
    listed = subprocess.run(["perl", "-e", "print join qq(\\n), @INC"], capture_output=True)
    return [path for line in listed.stdout.decode().splitlines() if (path := Path(line)).is_dir()]


def package_folder(package: str) -> Path | None:
    """The unpacked Debian package, or None (with a line that says why) where there is none."""
    folder = DATA / "packages" / package
    if folder.is_dir():
        return folder
    if shutil.which("apt-get") is None or shutil.which("dpkg") is None:
        print(f"left out {package}: this machine has no apt-get and dpkg", file=sys.stderr)
        return None
    partial = folder.with_name(f"{folder.name}.partial")
    shutil.rmtree(partial, ignore_errors=True)
    partial.mkdir(parents=True)
    try:
        subprocess.run(["apt-get", "download", "-q", package], cwd=partial, check=True)
        for archive in partial.glob("*.deb"):
            subprocess.run(["dpkg", "-x", archive, partial], check=True)
            archive.unlink()
        for archive in partial.rglob("*.tar.xz"):
            subprocess.run(["tar", "-xf", archive, "-C", archive.parent], check=True)
            archive.unlink()
    except subprocess.CalledProcessError as error:
        print(f"left out {package}: {error} (try `apt-get update` first)", file=sys.stderr)
        return None
    partial.rename(folder)
    return folder


def sources() -> Iterator[tuple[str, Path]]:
    """(name, folder) of each source, in the order in which they are taken; lazily fetched."""
    yield "python", Path(sysconfig.get_path("stdlib"))
    for number, folder in enumerate(perl_folders()):
        yield f"perl{number}", folder
    for package in PACKAGES:
        if (unpacked := package_folder(package)) is not None:
            yield package, unpacked


def document(path: Path) -> str | None:
    """The file as text, or None where it is not a document."""
    if path.is_symlink() or not path.is_file() or NOT_TEXT & set(path.suffixes):
        return None
    content = path.read_bytes() if path.stat().st_size <= LARGEST else b""
    if path.suffix == ".gz":
        content = gzip.decompress(content)
    if not SMALLEST <= len(content) <= LARGEST or b"\0" in content:
        return None
    try:
        return content.decode("utf-8")
    except UnicodeDecodeError:
        return None


def line(name: str, text: str) -> bytes:
    return json.dumps({"text": text, "path": name}, ensure_ascii=False).encode() + b"\n"


def documents(size: int) -> list[tuple[str, Path, int]]:
    """(name, file, bytes of its line) of documents of `size` bytes in all, or all there are."""
    found: list[tuple[str, Path, int]] = []
    seen: set[bytes] = set()
    total = 0
    for source, folder in sources():
        taken = 0
        for path in sorted(folder.rglob("*")):
            if "site-packages" in path.parts or TABLES in path.as_posix():
                continue
            text = document(path)
            if text is None:
                continue
            digest = hashlib.blake2b(text.encode(), digest_size=16).digest()
            if digest in seen:
                continue
            seen.add(digest)
            name = f"{source}/{path.relative_to(folder).as_posix()}"
            found.append((name, path, len(line(name, text))))
            taken += found[-1][2]
            if total + taken >= size:
                break
        total += taken
        print(f"{source:18} {taken / 1e6:8.1f} MB", file=sys.stderr)
        if total >= size:
            return found
    print(
        f"only {total / 1e6:.0f} MB of {size / 1e6:.0f} MB were found; the rest is left out",
        file=sys.stderr,
    )
    return found


def write(found: list[tuple[str, Path, int]], folder: Path) -> None:
    random.Random(0).shuffle(found)
    total = sum(size for *_, size in found)
    ends = [total * k * (k + 1) // (PARTS * (PARTS + 1)) for k in range(1, PARTS + 1)]
    partial = folder.with_name(f"{folder.name}.partial")
    shutil.rmtree(partial, ignore_errors=True)
    partial.mkdir(parents=True)
    rest, written = iter(found), 0
    for part, end in enumerate(ends):
        with (partial / f"part-{part}.jsonl").open("wb") as file:
            while written < end:
                name, path, _ = next(rest)
                text = document(path)
                assert text is not None, path
                written += file.write(line(name, text))
    shutil.rmtree(folder, ignore_errors=True)
    partial.rename(folder)
    print(f"{folder}: {len(found):,} documents, {written:,} bytes in {PARTS} files")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--size", default="300MB", help="bytes of JSONL, such as 300MB or 1GB")
    options = parser.parse_args()
    write(documents(size_in_bytes(options.size)), DATA / options.size)


if __name__ == "__main__":
    main()
