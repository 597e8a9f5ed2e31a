"""A tokenizer as files: found by reference, carried as bytes, named by a digest."""

from __future__ import annotations

import fnmatch
import functools
import hashlib
import os
import re
import tempfile
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import orjson

from cachelib.errors import ForebayError
from pipelines.sources.files import filesystem, naming
from pipelines.tokenization.memory import remembered

TOKENIZER = "tokenizer.json"
CONFIG = "tokenizer_config.json"
SPECIAL_TOKENS = "special_tokens_map.json"
# What is kept beside tokenizer.json: who the special tokens are, and how chats are written.
COMPANIONS = (CONFIG, SPECIAL_TOKENS, "chat_template.jinja", "chat_template.json")
MORE_TEMPLATES = "additional_chat_templates"

_PATTERNS = (
    TOKENIZER,
    *COMPANIONS,
    f"{MORE_TEMPLATES}/*.jinja",
    "config.json",
    "vocab*",
    "merges.txt",
    "*.model",
    "*.tiktoken",
)
"""What of a model's folder a tokenizer may be made of."""

_HUB_ID = re.compile(r"[A-Za-z0-9][\w.-]*(/[A-Za-z0-9][\w.-]*)?")
_FILE_SUFFIXES = (".json", ".model", ".txt", ".jinja", ".tiktoken")


class TokenizerError(ForebayError, ValueError):
    """A tokenizer cannot be found, read or used as asked."""


@dataclass(frozen=True)
class TokenizerFiles:
    """All that is needed to encode and decode with a tokenizer.

    Attributes:
        contents: (name, bytes) pairs, sorted by name; ``tokenizer.json`` is always among them.
        reference: what the user called it; for messages only, not part of equality.
    """

    contents: tuple[tuple[str, bytes], ...]
    reference: str = field(default=TOKENIZER, compare=False)

    def __post_init__(self) -> None:
        names = [name for name, _ in self.contents]
        if TOKENIZER not in names:
            raise TokenizerError(
                f"tokenizer {self.reference!r} has no {TOKENIZER}, only {names or 'nothing'}"
            )
        if names != sorted(set(names)):
            raise ValueError(f"contents must be sorted by name, each name once, got {names}")

    @classmethod
    def from_files(cls, files: Mapping[str, bytes], reference: str = TOKENIZER) -> TokenizerFiles:
        """The inverse of ``to_files``."""
        return cls(tuple(sorted(files.items())), reference)

    def to_files(self) -> dict[str, bytes]:
        """Name -> content, as stored under ``<cache>/tokenizer/``."""
        return dict(self.contents)

    @functools.cached_property
    def spec(self) -> dict[str, Any]:
        """tokenizer.json, parsed; not to be changed in place.

        Raises:
            TokenizerError: it is not JSON, or not the JSON of a tokenizer.
        """
        try:
            spec = orjson.loads(self.to_files()[TOKENIZER])
        except orjson.JSONDecodeError as error:
            raise TokenizerError(f"tokenizer {self.reference!r}: not JSON: {error}") from error
        if not isinstance(spec, dict) or not isinstance(spec.get("model"), dict):
            raise TokenizerError(
                f"tokenizer {self.reference!r}: expected the tokenizer.json of the `tokenizers` "
                'library, an object with a "model"'
            )
        return spec

    @functools.cached_property
    def digest(self) -> str:
        """Digest of what tokenizer.json says, blake2b-128 in hex.

        Layout, key order, the two ways to write merges, truncation and padding do not count: they
        do not change ids. The companions do not count either; what is taken from them (the ids of
        BOS and EOS) is recorded for itself.
        """
        # Merges in 128,000 strings take a quarter of a second to bring into one form.
        raw = hashlib.blake2b(self.to_files()[TOKENIZER]).digest()
        return str(remembered("content", raw, self._content_digest))

    def _content_digest(self) -> str:
        spec = {**self.spec, "truncation": None, "padding": None}
        merges = spec["model"].get("merges")
        if merges and isinstance(merges[0], str):
            spec["model"] = {**spec["model"], "merges": [merge.split(" ", 1) for merge in merges]}
        canonical = orjson.dumps(spec, option=orjson.OPT_SORT_KEYS)
        return hashlib.blake2b(canonical, digest_size=16).hexdigest()

    def companion(self, name: str) -> dict[str, Any]:
        """A companion file that is a JSON object; {} where there is none."""
        content = self.to_files().get(name)
        if content is None:
            return {}
        try:
            parsed = orjson.loads(content)
        except orjson.JSONDecodeError as error:
            raise TokenizerError(
                f"tokenizer {self.reference!r}: {name} is not JSON: {error}"
            ) from error
        if not isinstance(parsed, dict):
            raise TokenizerError(f"tokenizer {self.reference!r}: {name} is not a JSON object")
        return parsed


def load_tokenizer(reference: str | os.PathLike[str]) -> TokenizerFiles:
    """Finds a tokenizer.

    Args:
        reference: a ``tokenizer.json`` (under any name ending in ``.json``), a folder as
            transformers saves it, by path or by any URL that fsspec knows, or the id of a model on
            the Hugging Face hub. A folder without
            ``tokenizer.json`` is converted by transformers, without running code from the folder.

    Raises:
        TokenizerError: nothing usable is there, or the hub cannot be reached.
        SourceError: the store of a URL cannot be reached.
    """
    name = os.fspath(reference)
    if "://" in name:
        with tempfile.TemporaryDirectory() as copied:
            return _from_copy(_copy(name, Path(copied)), name)
    path = Path(name).expanduser()
    if path.is_file():
        return _from_file(path, name)
    if path.is_dir():
        return _from_folder(path, name)
    if _HUB_ID.fullmatch(name) and not name.endswith(_FILE_SUFFIXES):
        return _from_folder(_download(name), name)
    raise TokenizerError(
        f"no tokenizer at {name!r}: expected a tokenizer.json, a folder that holds one, or the id "
        "of a model on the Hugging Face hub"
    )


def _from_file(path: Path, reference: str) -> TokenizerFiles:
    if path.suffix != ".json":
        raise TokenizerError(
            f"tokenizer {reference!r}: only a tokenizer.json can be given as a file; for "
            f"{path.name} give its folder, so that transformers can convert it"
        )
    # A tokenizer.json in its usual place names its special tokens in the files beside it.
    companions = _companions(path.parent) if path.name == TOKENIZER else {}
    return _checked({**companions, TOKENIZER: path.read_bytes()}, reference)


def _copy(url: str, to: Path) -> Path:
    """A copy of what lies at a URL: of one file, or of a folder's files that matter."""
    with naming(url):
        store, place = filesystem(url)
        place = place.rstrip("/")
        alone = store.isfile(place)
        folder, name = place.rsplit("/", 1) if alone else (place, "")
        if alone and name != TOKENIZER:
            (to / name).write_bytes(store.cat_file(place))
            return to / name
        for path in _listed(store, folder) + _listed(store, f"{folder}/{MORE_TEMPLATES}"):
            relative = path.removeprefix(folder).lstrip("/")
            if any(fnmatch.fnmatchcase(relative, pattern) for pattern in _PATTERNS):
                (to / relative).parent.mkdir(exist_ok=True)
                (to / relative).write_bytes(store.cat_file(path))
    return to / name


def _listed(store: Any, folder: str) -> list[str]:
    with suppress(FileNotFoundError):
        return [path for path in store.ls(folder, detail=False) if store.isfile(path)]
    return []


def _from_copy(path: Path, reference: str) -> TokenizerFiles:
    if path.is_file():
        return _from_file(path, reference)
    if not any(path.iterdir()):
        raise TokenizerError(
            f"no tokenizer at {reference!r}: expected the URL of a tokenizer.json, or of a folder "
            "that holds one"
        )
    return _from_folder(path, reference)


def _from_folder(folder: Path, reference: str) -> TokenizerFiles:
    if (folder / TOKENIZER).is_file():
        return _from_file(folder / TOKENIZER, reference)
    return _checked(_converted(folder, reference), reference)


def _checked(files: Mapping[str, bytes], reference: str) -> TokenizerFiles:
    found = TokenizerFiles.from_files(files, reference)
    _ = found.spec  # raises
    return found


def _companions(folder: Path) -> dict[str, bytes]:
    paths = [folder / name for name in COMPANIONS]
    paths += sorted((folder / MORE_TEMPLATES).glob("*.jinja"))
    return {p.relative_to(folder).as_posix(): p.read_bytes() for p in paths if p.is_file()}


def _converted(folder: Path, reference: str) -> dict[str, bytes]:
    """The files of a tokenizer that only transformers can load."""
    from transformers import AutoTokenizer

    try:
        tokenizer = AutoTokenizer.from_pretrained(str(folder), trust_remote_code=False)
        converted = tokenizer.backend_tokenizer.to_str().encode()
    except Exception as error:
        raise TokenizerError(
            f"tokenizer {reference!r}: the folder has no {TOKENIZER} and transformers cannot "
            f"convert it: {type(error).__name__}: {error}"
        ) from error
    with tempfile.TemporaryDirectory() as saved:
        tokenizer.save_pretrained(saved)
        return {**_companions(Path(saved)), TOKENIZER: converted}


def _download(name: str) -> Path:
    from huggingface_hub import snapshot_download

    try:
        return Path(
            snapshot_download(
                name,
                allow_patterns=list(_PATTERNS),
            )
        )
    except Exception as error:
        raise TokenizerError(
            f"tokenizer {name!r}: no such file or folder here, and the Hugging Face hub gave no "
            f"model of this id ({type(error).__name__}: {str(error).splitlines()[0][:200]}). "
            "Give the path of a tokenizer.json or of a folder that holds one"
        ) from error
