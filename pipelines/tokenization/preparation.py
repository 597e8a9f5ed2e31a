"""Before a build: who is the tokenizer, and which engine is exact for it?"""

from __future__ import annotations

import functools
import hashlib
import threading
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, cast

import numpy as np
import orjson
import pyarrow as pa

from cachelib.errors import IncompatibleCache
from cachelib.ragged import Ragged
from pipelines.tokenization.arrow import as_texts, take
from pipelines.tokenization.code_points import CodePointSet
from pipelines.tokenization.encoder import Encoder, with_edges
from pipelines.tokenization.engines import (
    Engine,
    Gigatoken,
    HuggingFace,
    differing_rows,
    exact_engine,
    fast_engine,
    versions,
)
from pipelines.tokenization.files import TokenizerError, TokenizerFiles
from pipelines.tokenization.identity import Identity, behaviour_digest, differences
from pipelines.tokenization.measurement import UnexplainedDifference, measured
from pipelines.tokenization.memory import remembered
from pipelines.tokenization.policy import Policy, additions, resolve
from pipelines.tokenization.probes import EDITION, probe_texts
from pipelines.tokenization.specials import (
    Spec,
    for_text,
    hide_specials,
    reachable_tokens,
    special_tokens,
    vocabulary_tokens,
)
from pipelines.tokenization.twin import twin

AUTO, GIGATOKEN, HF = "auto", "gigatoken", "hf"
ENGINES = (AUTO, GIGATOKEN, HF)


@dataclass(frozen=True)
class Prepared:
    """All that workers need, beside the files, to encode alike.

    Attributes:
        identity: what decides ids.
        engine: "gigatoken" (with the exact engine for some documents) or "hf".
        hidden: special tokens are hidden from the model, see ``specials.hide_specials``.
        exact_code_points: documents with any of them go to the exact engine.
        versions: (engine, version) pairs with which all this was found.
        notes: what the user should know, a sentence each.
    """

    identity: Identity
    engine: str
    hidden: bool
    exact_code_points: CodePointSet
    versions: tuple[tuple[str, str], ...]
    notes: tuple[str, ...] = ()

    def to_json(self) -> dict[str, Any]:
        """A JSON object, as JSON gives it back; ``from_json`` is the inverse."""
        return {
            "identity": self.identity.to_json(),
            "engine": self.engine,
            "hidden": self.hidden,
            "exact_code_points": [list(pair) for pair in self.exact_code_points.ranges],
            "versions": dict(self.versions),
            "notes": list(self.notes),
        }

    @classmethod
    def from_json(cls, value: dict[str, Any]) -> Prepared:
        """Raises KeyError, TypeError or ValueError where the object is another one."""
        ranges = tuple((first, last) for first, last in value["exact_code_points"])
        return cls(
            identity=Identity.from_json(value["identity"]),
            engine=value["engine"],
            hidden=value["hidden"],
            exact_code_points=CodePointSet(ranges),
            versions=tuple(sorted(value["versions"].items())),
            notes=tuple(value["notes"]),
        )


def prepare(
    files: TokenizerFiles,
    policy: Policy | None = None,
    engine: str = AUTO,
    sample_texts: Sequence[str] | pa.Array = (),
) -> Prepared:
    """Finds out how to encode with a tokenizer; what needs no text of the source is remembered.

    Args:
        policy: tokens at document edges; by default none.
        engine: "auto" takes gigatoken where it is exact; "gigatoken" insists on it; "hf".
        sample_texts: the first documents of the source, on which the engines are compared too;
            a MB of them takes a quarter of a second.

    Raises:
        TokenizerError: the tokenizer cannot be used, or not with the engine insisted on.
    """
    if engine not in ENGINES:
        raise ValueError(f"engine must be one of {', '.join(ENGINES)}, got {engine!r}")
    policy = policy or Policy()
    about = [
        {name: hashlib.blake2b(data).hexdigest() for name, data in files.contents},
        [policy.bos, policy.eos, engine, versions(), _source_digest()],
    ]
    prepared = Prepared.from_json(
        remembered(
            "tokenizer",
            orjson.dumps(about, option=orjson.OPT_SORT_KEYS),
            lambda: _examined(files, policy, engine).to_json(),
        )
    )
    if prepared.engine == HF:
        return prepared
    spec, samples = _spec(files, prepared.hidden), as_texts(sample_texts)
    code_points, ids = prepared.exact_code_points, exact_engine(spec).encode(samples)
    try:
        check_engine(fast_engine(spec), code_points, samples, ids, "document of the source")
    except TokenizerError as error:
        return replace(
            prepared, engine=HF, notes=(*prepared.notes, _without_fast(files, engine, error))
        )
    return prepared


def _examined(files: TokenizerFiles, policy: Policy, engine: str) -> Prepared:
    """What `prepare` finds without any text of a source: a function of its arguments alone."""
    notes: list[str] = []
    spec = for_text(files.spec)
    if files.spec["model"].get("dropout"):
        notes.append("The tokenizer's BPE dropout is switched off: ids must not depend on chance.")
    original = exact_engine(spec)
    leaks = _leaks(original, spec)
    if leaks:
        notes.append(
            f"The tokenizer's model makes special tokens out of text ({', '.join(leaks[:4])}); "
            "here such text stays text."
        )
    spec = _spec(files, bool(leaks))
    exact = exact_engine(spec)
    probes = as_texts(probe_texts(special_tokens(files.spec), vocabulary_tokens(files.spec)))
    probe_ids = exact.encode(probes)
    identity = _identity(files, policy, original, probe_ids)

    chosen, code_points = HF, CodePointSet()
    if engine != HF:
        try:
            fast = fast_engine(spec)
            code_points = _exact_code_points(spec, fast, exact)
            check_engine(fast, code_points, probes, probe_ids, "probe text")
            chosen = GIGATOKEN
        except TokenizerError as error:
            notes.append(_without_fast(files, engine, error))
    return Prepared(
        identity,
        chosen,
        bool(leaks),
        code_points,
        tuple(sorted(versions().items())),
        tuple(notes),
    )


def _without_fast(files: TokenizerFiles, engine: str, error: TokenizerError) -> str:
    """The note that the fast engine is not used, or an error where it was insisted on."""
    if engine == GIGATOKEN:
        raise TokenizerError(
            f"engine 'gigatoken' cannot be used for tokenizer {files.reference!r}: {error}"
        ) from error
    return f"The slower engine, Hugging Face tokenizers, is used: {error}."


def _spec(files: TokenizerFiles, hidden: bool) -> Spec:
    spec = for_text(files.spec)
    return hide_specials(spec) if hidden else spec


@functools.cache
def _source_digest() -> str:
    """Of the code that examines tokenizers: what other code found is not taken for its own."""
    digest = hashlib.blake2b(digest_size=16)
    for path in sorted(Path(__file__).parent.glob("*.py")):
        digest.update(path.read_bytes())
    return digest.hexdigest()


def _leaks(engine: HuggingFace, spec: Spec) -> list[str]:
    """Special tokens whose ids come out of a text that holds their characters."""
    reachable = reachable_tokens(spec)
    specials = [token for token in special_tokens(spec) if token not in reachable]
    texts = [f"{token} x{token}y  {token}\n{token}{token}" for token in specials]
    ids = engine.encode(as_texts(texts))
    return [
        token
        for token, row in zip(specials, ids, strict=True)
        if engine.tokenizer.token_to_id(token) in row
    ]


def _identity(
    files: TokenizerFiles, policy: Policy, original: HuggingFace, probe_ids: Ragged
) -> Identity:
    added = additions(original.tokenizer)
    edges = resolve(policy, files, original.tokenizer, added)
    vocabulary = original.tokenizer.get_vocab(with_added_tokens=True)
    return Identity(
        content=files.digest,
        behaviour=behaviour_digest(with_edges(probe_ids, edges.bos_id, edges.eos_id)),
        probes=EDITION,
        edges=edges,
        added=added,
        vocabulary=len(vocabulary),
        largest_id=max(vocabulary.values(), default=0),
    )


def _exact_code_points(spec: Spec, fast: Engine, exact: Engine) -> CodePointSet:
    """Where gigatoken must not be used; raises TokenizerError where it cannot be used at all."""
    shows_splits = twin(spec)

    def engines() -> tuple[Engine, Engine]:
        if shows_splits is None:
            return fast, exact
        return Gigatoken(shows_splits), HuggingFace(shows_splits)

    about = orjson.dumps([shows_splits or spec, versions()], option=orjson.OPT_SORT_KEYS)
    try:
        return measured(engines, about)
    except UnexplainedDifference as difference:
        raise TokenizerError(f"the engines differ: {difference}") from difference


def check_engine(
    fast: Engine,
    exact_code_points: CodePointSet,
    texts: pa.LargeStringArray,
    ids: Ragged,
    name: str,
) -> None:
    """Raises TokenizerError at the first text that ``fast`` may encode and encodes otherwise.

    Args:
        ids: what the exact engine gives for ``texts``.
        name: what such a text is called.
    """
    safe = np.flatnonzero(~exact_code_points.rows_containing(texts))
    texts, ids = take(texts, safe), ids.take(safe)
    found = fast.encode(texts)
    rows = differing_rows(found, ids)
    if len(rows):
        row = int(rows[0])
        left, right = found[row].tolist(), ids[row].tolist()
        at = next(
            (i for i, (a, b) in enumerate(zip(left, right, strict=False)) if a != b),
            min(len(left), len(right)),
        )
        text = texts[row].as_py()
        raise TokenizerError(
            f"the engines differ on the {name} {text[:80]!r}: at token {at} gigatoken has "
            f"{left[at : at + 4]}, Hugging Face tokenizers {right[at : at + 4]}"
        )


_opening = threading.Lock()


def open_encoder(files: TokenizerFiles, prepared: Prepared) -> Encoder:
    """The encoder for a worker process; opened once for equal arguments, shared by its threads.

    Where the installed engines are not those that ``prepared`` was made with, the tokenizer is
    prepared again.

    Raises:
        IncompatibleCache: the files or the installed library give other ids than ``prepared``.
    """
    with _opening:  # two threads must not both load it
        return _open(files, prepared)


@functools.lru_cache(maxsize=4)
def _open(files: TokenizerFiles, prepared: Prepared) -> Encoder:
    if files.digest != prepared.identity.content:
        raise IncompatibleCache(
            f"tokenizer {files.reference!r} has content {files.digest}, but was prepared as "
            f"{prepared.identity.content}; prepare it again"
        )
    if tuple(sorted(versions().items())) != prepared.versions:
        edges = prepared.identity.edges
        engine = HF if prepared.engine == HF else AUTO
        again = prepare(files, Policy(edges.bos, edges.eos), engine)
        found = differences(prepared.identity, again.identity)
        if found:
            raise IncompatibleCache(f"tokenizer {files.reference!r}: {'; '.join(found)}")
        prepared = again
    spec = _spec(files, prepared.hidden)
    return Encoder(
        exact=lambda: cast(Engine, exact_engine(spec)),
        edges=prepared.identity.edges,
        fast=fast_engine(spec) if prepared.engine == GIGATOKEN else None,
        exact_code_points=prepared.exact_code_points,
    )


def decode(files: TokenizerFiles, ids: Sequence[int] | np.ndarray) -> str:
    """Text of one row of ids, special tokens included; for people to read."""
    return str(_decoder(files).decode([int(i) for i in ids], skip_special_tokens=False))


@functools.lru_cache(maxsize=4)
def _decoder(files: TokenizerFiles) -> Any:
    return HuggingFace(for_text(files.spec)).tokenizer
