"""Following: what a stream's workers do, seen from who began it: commits, and news of files."""

from __future__ import annotations

import time
from collections.abc import Callable

from cachelib.errors import BuildFailed
from cachelib.format.ledger import Ledger
from pipelines.streams.news import News, collect
from pipelines.streams.units import Stream
from pipelines.tally import Head, Tally, sources_of


class Following:
    """Looks at the store for what a stream has done, and tells it.

    Args:
        stream: that is followed, with its run.
        tell: called with a line for whatever happens.
    """

    def __init__(self, stream: Stream, tell: Callable[[str], None]) -> None:
        self._stream = stream
        self._tell = tell
        self._told: set[str] = set()
        self._head = Head(stream.storage)
        self._waiting: set[str] = set()
        self._committed = time.monotonic()
        self.seen = Tally(stream.storage.url)

    def look(self) -> None:
        """Tell what is new.

        Raises:
            CacheNotFound: the cache was deleted or replaced.
            BuildFailed: nothing more can be committed; says why.
        """
        commits = self._head.since()
        # What is committed was announced before, so it is heard of before it is done with.
        for news in collect(self._stream.storage, self._stream.run):
            self._hear(news)
        if self._head.commit is not None:
            self.seen.see(self._head.commit)
        own = [commit for commit in commits if commit.task.get("stream") == self._stream.name]
        if own:
            sources = sources_of(Ledger(self._stream.storage), own)
            self._waiting -= sources
            self._committed = time.monotonic()
            for name in sources:
                self.seen.damaged.pop(name, None)
            self._tell(self.seen.take(own, sources))

    def status(self) -> dict[str, float]:
        """What others may know: files of which nothing is committed, seconds since a commit."""
        return {"waiting": len(self._waiting), "idle": time.monotonic() - self._committed}

    def _hear(self, news: News) -> None:
        seen = self.seen
        if news.became == "found":
            self._waiting |= set(news.names)
            return
        self._waiting -= set(news.names)
        for name in news.names:
            match news.became:
                case "vanished":
                    self._tell(seen.miss(name))
                case "changed":
                    self._tell(seen.leave_out(name))
                case "rewritten":
                    self._tell(f"waiting for {name}: it changed while it was read")
                case "unreached":
                    self._tell(f"waiting for {name}: {news.message}")
                case "unusable":
                    self._tell(seen.set_aside(name, news.message))
                case "known":
                    self._tell(seen.set_aside(name, news.message, before=True))
        if news.became == "stopped":
            raise BuildFailed(news.message)
        if news.became == "failed":
            self._tell(f"{news.message}; trying again")
        if news.became == "nothing" and news.message not in self._told:
            self._told.add(news.message)
            self._tell(f"nothing yet: {news.message}")
