"""Request: a configuration with everything found out that planning needs."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from typing import Any

import pyarrow as pa

from cachelib.canonical import canonical
from cachelib.errors import IncompatibleCache, SourceError
from cachelib.ledger import Ledger
from cachelib.schema import Schema
from cachelib.storage import Storage
from pipelines.columns import text_schema
from pipelines.config import BuildConfig
from pipelines.sources import Discovery, discover, read, url_of
from pipelines.sources.records import Reading
from pipelines.tokenization import (
    Encoder,
    Identity,
    Policy,
    Prepared,
    TokenizerFiles,
    check_same,
    load_tokenizer,
    open_encoder,
    prepare,
)

SAMPLE_BYTES = 256 << 10
"""Text of the first source on which engines are compared and tokens are estimated."""


@dataclass(frozen=True)
class Request:
    """A configuration with everything found out that planning needs.

    Attributes:
        config: as it was given.
        storage: of the cache.
        discovery: the sources.
        reading: how records become text.
        files, prepared: the tokenizer.
        schema, identity: of the rows.
        tokens_per_byte: of the sample, 0 where there was no text.
    """

    config: BuildConfig
    storage: Storage
    discovery: Discovery
    reading: Reading
    files: TokenizerFiles
    prepared: Prepared
    schema: Schema
    identity: dict[str, Any]
    tokens_per_byte: float


def inquire(config: BuildConfig, discovery: Discovery | None = None) -> Request:
    """Find out what planning needs: the sources, the tokenizer, and whether the cache fits."""
    storage = Storage.at(config.to)
    reading = Reading(config.text_field, tuple(config.keep.items()), config.invalid_unicode)
    files = load_tokenizer(config.tokenizer)
    if discovery is None:
        discovery = discover(config.inputs, format=config.format)
    sample = _sample(discovery, reading)
    prepared = prepare(files, Policy(config.bos, config.eos), config.engine, sample)
    encoder = open_encoder(files, prepared)
    request = Request(
        config=config,
        storage=storage,
        discovery=discovery,
        reading=reading,
        files=files,
        prepared=prepared,
        schema=text_schema(prepared.identity.dtype.name, reading.keep),
        identity=_identity(reading, prepared),
        tokens_per_byte=_tokens_per_byte(encoder, sample),
    )
    _check_fits(request)
    return request


def _sample(discovery: Discovery, reading: Reading) -> pa.LargeStringArray:
    """The first documents, for comparing engines; a source that cannot be read fails later."""
    source = discovery.sources[0]
    url = url_of(discovery.roots[source.root], source)
    records = read(url, source, 0, source.extent, reading)
    try:
        text = next(iter(records)).text
    except (StopIteration, SourceError):
        return pa.array([], pa.large_string())
    sizes = pa.compute.cumulative_sum(pa.compute.binary_length(text))
    count = pa.compute.sum(pa.compute.less(sizes, SAMPLE_BYTES)).as_py() or 0
    return text[:count]


def _tokens_per_byte(encoder: Encoder, sample: pa.LargeStringArray) -> float:
    size = pa.compute.sum(pa.compute.binary_length(sample)).as_py() or 0
    return len(encoder.encode(sample).values) / size if size else 0.0


def _check_fits(request: Request) -> None:
    """Refuse to add rows that are made in another way than those of the cache.

    Raises:
        IncompatibleCache: saying what differs.
    """
    ledger = Ledger(request.storage)
    head = ledger.head()
    if head is None:
        return
    commit = ledger.commit(head)
    url = request.storage.url
    theirs, ours = commit.identity, request.identity
    if theirs.get("processor") != ours["processor"]:
        raise IncompatibleCache(f"{url} holds rows made by {theirs.get('processor')!r}")
    check_same(Identity.from_json(theirs["tokenizer"]), request.prepared.identity, url)
    if theirs["reading"] != ours["reading"]:
        different = [
            f"{key} is {value!r}, the cache has {theirs['reading'].get(key)!r}"
            for key, value in ours["reading"].items()
            if value != theirs["reading"].get(key)
        ]
        raise IncompatibleCache(f"{url}: its records were read in another way: {different}")


def _identity(reading: Reading, prepared: Prepared) -> dict[str, Any]:
    """How rows are made, as it is after a round trip through JSON."""
    identity = {
        "processor": "tokens",
        "reading": asdict(reading),
        "tokenizer": prepared.identity.to_json(),
        "engines": dict(prepared.versions),
    }
    round_trip: dict[str, Any] = json.loads(canonical(identity))
    return round_trip
