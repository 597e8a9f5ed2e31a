"""The lazy face: what a cache is to be made of, built in the background while it is read.

web = read_jsonl("raw/*.jsonl").map(clean).tokenize("tok.json").cache("cache/web")
loader = web.windows(2048).shuffle(seed=0).loader(batch_size=64)
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from cachelib.errors import ForebayError
from cachelib.following import Followed, Patience, Waiting
from cachelib.format.ledger import Ledger
from cachelib.format.storage import Storage
from pipelines.background import Build
from pipelines.config import BuildConfig, build_config
from pipelines.planning import next_plan
from pipelines.request import inquire
from pipelines.sources.mapping import Function, name_of


@dataclass(frozen=True)
class Recipe:
    """What a cache is to be made of, as keys of a build; nothing is read before `cache`."""

    values: Mapping[str, Any]

    def map(self, function: Function, version: str | None = None) -> Recipe:
        """Change each record by a function of a module: see ``map`` of a build.

        Args:
            function: takes a dict of the text and the kept fields, and gives the text, a dict of
                what changes, or None to leave the record out.
            version: tells it from earlier ones of that name; None tells them by its source.

        Raises:
            TypeError: it is no function at the top level of a module that can be imported.
            ForebayError: there is one already.
        """
        if "map" in self.values:
            raise ForebayError(f"map is {self.values['map']} already: call it from one function")
        told = {} if version is None else {"map_version": version}
        return self._with(map=name_of(function), **told)

    def tokenize(
        self, tokenizer: str | os.PathLike[str], *, bos: str | None = None, eos: str | None = None
    ) -> Recipe:
        """Say by which tokenizer, and which tokens are put around documents: see a build."""
        return self._with(tokenizer=os.fspath(tokenizer), bos=bos, eos=eos)

    def cache(
        self,
        path: str | os.PathLike[str],
        *,
        build: bool = True,
        waiting: Callable[[Waiting], object] | None = None,
        timeout: float = Patience.timeout,
        **options: Any,
    ) -> Followed:
        """The cache, followed: it is built, or brought up to date, in a process of its own.

        Returns as soon as the first rows are there. The process ends with this one; what it
        committed stays, and the next call goes on from there. When all is taken in it marks the
        cache complete; a cache that is complete is read as it is.

        Args:
            path: where the cache is.
            build: whether this process starts the build: of the processes of a job one should.
            waiting: is called with a `cachelib.following.Waiting` about once a second while rows
                are waited for; ``print`` shows it.
            timeout: seconds that one read waits, at most.
            options: further keys of a build, such as ``workers`` or ``keep``.

        Raises:
            ConfigError: a key or value that cannot be, or no tokenizer was given.
            IncompatibleCache: the cache that is there was made in another way: by another
                tokenizer, function, ...
            BuildFailed: the build ended with an error; from here, or from a read that waits for it.
        """
        values = {**self.values, "spread": True, "finish": True, **options, "to": os.fspath(path)}
        config = build_config(values)
        ledger = Ledger(Storage.at(config.to))
        head = ledger.head()
        finished = head is not None and ledger.commit(head).finished
        complete = head is not None and _has_all(config) and finished
        started = Build(values) if build and not complete else None
        if started is not None and finished:  # it is added to, and looks complete until then
            started.until(lambda: ledger.head() != head)

        def look(told: Waiting) -> None:
            if started is not None:
                started.check()
            if waiting is not None:
                waiting(told)

        # Statuses that are there may be of an earlier build. What is known of one that runs is
        # known here if it was started here; of another process's it is waited for.
        patience = Patience(
            timeout=timeout,
            waiting=look,
            grace=Patience.grace if build else Patience.stale,
            building=None if started is None else started.runs,
        )
        return Followed(ledger.storage, patience)

    def _with(self, **values: Any) -> Recipe:
        return replace(self, values={**self.values, **values})


def _has_all(config: BuildConfig) -> bool:
    """Whether the cache that is there has all that the sources hold.

    Raises:
        IncompatibleCache: it was made in another way, or was marked complete without some of the
            sources.
    """
    return next_plan(inquire(config)).plan is None


Inputs = str | os.PathLike[str] | Sequence[str | os.PathLike[str]] | Mapping[str, str]


def read_jsonl(inputs: Inputs, *, text_field: str = "text", **options: Any) -> Recipe:
    """Records of JSON Lines, compressed or not; options are keys of a build, such as ``keep``."""
    return _read("jsonl", inputs, text_field=text_field, **options)


def read_parquet(inputs: Inputs, *, text_field: str = "text", **options: Any) -> Recipe:
    """Rows of Parquet files, likewise."""
    return _read("parquet", inputs, text_field=text_field, **options)


def read_text(inputs: Inputs, **options: Any) -> Recipe:
    """Files of plain text, a document each, likewise."""
    return _read("text", inputs, **options)


def _read(format: str, inputs: Inputs, **options: Any) -> Recipe:
    return Recipe({"inputs": inputs, "format": format, **options})
