"""Request: a configuration with everything found out that planning needs."""

from __future__ import annotations

import json
from dataclasses import dataclass, replace
from typing import Any

import pyarrow as pa

from cachelib.errors import IncompatibleCache, SourceError
from cachelib.format.canonical import canonical, digest
from cachelib.format.ledger import Ledger
from cachelib.format.schema import Schema
from cachelib.format.storage import Storage
from pipelines.columns import text_schema
from pipelines.config import BuildConfig, called
from pipelines.sample import Sample, take_sample
from pipelines.sources import Discovery, discover, url_of
from pipelines.sources.files import lies_in
from pipelines.sources.mapping import mapped
from pipelines.sources.records import Holdout, Reading, Source
from pipelines.tasks import tokenizer_objects
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
        sample: the first records.
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
    sample: Sample
    tokens_per_byte: float


def cache_url(config: BuildConfig, held: bool) -> str:
    """Where the cache is that a configuration makes, or the one of what it holds out."""
    url = Storage.at(config.to).url
    return f"{url.rstrip('/')}-holdout/" if held else url


def find_sources(config: BuildConfig) -> Discovery:
    """The sources asked for, without what the cache itself holds where it lies among them.

    Raises:
        SourceError: there are none, or the cache's place is a file.
    """
    discovery = discover(config.inputs, format=config.format)
    place = Storage.at(config.to).local_path
    if place is not None:
        there = next((path for path in (place, *place.parents) if path.exists()), place.parent)
        if not there.is_dir():
            raise SourceError(
                f"{there}: the cache needs a folder, and this is a file; name another"
            )
    inside = [s for s in discovery.sources if belongs_to(config, _url(discovery, s))]
    if not inside:
        return discovery
    if len(inside) == len(discovery.sources):
        raise SourceError(f"all files that were found belong to the cache {config.to} itself")
    own_files = [(_url(discovery, source), "part of the cache") for source in inside]
    return replace(
        discovery,
        sources=tuple(source for source in discovery.sources if source not in set(inside)),
        skipped=(*discovery.skipped, *own_files),
    )


def _url(discovery: Discovery, source: Source) -> str:
    return url_of(discovery.roots[source.root], source)


def belongs_to(config: BuildConfig, url: str) -> bool:
    """Whether a file lies in a cache that a configuration makes."""
    sides = (False, True) if config.holdout else (False,)
    return any(lies_in(url, Storage.at(cache_url(config, held))) for held in sides)


def inquire(
    config: BuildConfig, discovery: Discovery | None = None, *, held: bool = False
) -> Request:
    """Find out what planning needs: the sources, the tokenizer, and whether the cache fits.

    Args:
        discovery: the sources, if they have been found.
        held: inquire for the cache of what is held out, not for the one of the rest.
    """
    storage = Storage.at(cache_url(config, held))
    everything = Reading(
        config.text_field,
        tuple(sorted(config.keep.items())),
        config.invalid_unicode,
        map=None if config.map is None else mapped(config.map, config.map_version),
    )
    told = config.holdout
    holdout = None if told is None else Holdout(told.fraction, told.seed, held)
    reading = replace(everything, holdout=holdout)
    files = load_tokenizer(config.tokenizer)
    if discovery is None:
        discovery = find_sources(config)
    sample = take_sample(discovery, everything)
    prepared = prepare(files, Policy(config.bos, config.eos), config.engine, sample.text)
    encoder = open_encoder(files, prepared)
    identity = _identity(reading, prepared, files)
    schema = text_schema(prepared.identity.dtype.name, reading.keep)
    return Request(
        config=config,
        storage=storage,
        discovery=discovery,
        reading=reading,
        files=files,
        prepared=prepared,
        schema=_fitting_schema(storage, schema, identity),
        identity=identity,
        sample=sample,
        tokens_per_byte=(holdout.share if holdout else 1) * _tokens_per_byte(encoder, sample.text),
    )


def _tokens_per_byte(encoder: Encoder, text: pa.LargeStringArray) -> float:
    size = pa.compute.sum(pa.compute.binary_length(text)).as_py() or 0
    return len(encoder.encode(text).values) / size if size else 0.0


def _fitting_schema(storage: Storage, schema: Schema, identity: dict[str, Any]) -> Schema:
    """The schema of new rows: that of the cache, where there is one, chunk sizes included.

    Raises:
        IncompatibleCache: the cache's rows were made in another way; says what differs.
    """
    ledger = Ledger(storage)
    head = ledger.head()
    if head is None:
        return schema
    commit = ledger.commit(head)
    theirs = commit.identity
    if theirs.get("processor") != identity["processor"]:
        raise IncompatibleCache(f"{storage.url} holds rows made by {theirs.get('processor')!r}")
    check_same(
        Identity.from_json(theirs["tokenizer"]),
        Identity.from_json(identity["tokenizer"]),
        storage.url,
    )
    here, there = identity["reading"], theirs["reading"]
    different = [
        f"{called(key)} is {_shown(here.get(key))}, the cache has {_shown(there.get(key))}"
        for key in here | there
        if here.get(key) != there.get(key)
    ]
    if different:
        raise IncompatibleCache(
            f"{storage.url}: its records were read in another way: {'; '.join(different)}"
        )
    if commit.schema.meaning != schema.meaning:
        raise IncompatibleCache(
            f"{storage.url} has the fields {commit.schema.to_json()}, not {schema.to_json()}"
        )
    return commit.schema


def _shown(value: Any) -> str:
    """A value of how records are read; kept fields as they are given."""
    if value is None:
        return "nothing"
    if isinstance(value, dict) and "function" in value:
        return f"{value['function']} ({value['by']} {value['told']})"
    if isinstance(value, dict):
        side = "what is held out" if value["held"] else "the rest"
        return f"{value['fraction']} by seed {value['seed']} ({side})"
    if isinstance(value, list):
        return ", ".join(f"{name}:{kind}" for name, kind in value) or "nothing"
    return repr(value)


def _identity(reading: Reading, prepared: Prepared, files: TokenizerFiles) -> dict[str, Any]:
    """How rows are made, as it is after a round trip through JSON."""
    identity = {
        "processor": "tokens",
        "reading": reading.to_json(),
        "tokenizer": prepared.identity.to_json(),
        "engines": dict(prepared.versions),
        "files": {key: digest(data) for key, data in tokenizer_objects(files).items()},
    }
    round_trip: dict[str, Any] = json.loads(canonical(identity))
    return round_trip
