"""Dataset: rows in an order, and the methods that make one dataset of another.

web = cachelib.open("web").windows(2048).shuffle(seed=0).repeat()
web.take([10**12])
"""

from __future__ import annotations

import numbers
import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, SupportsIndex, cast

import numpy as np

from cachelib.apart import check_apart
from cachelib.format.canonical import digest_of
from cachelib.format.schema import as_names
from cachelib.loader import BatchSize, Loader
from cachelib.nodes.base import (
    Adjacent,
    Columns,
    Node,
    Origin,
    Rows,
    Stream,
    Version,
    can,
    components,
    described,
    grows,
    layout,
    wait,
)
from cachelib.nodes.blocks import BlockShuffle
from cachelib.nodes.eras import ByPack, ByRow, ByWindow, Eras, Following, as_folder
from cachelib.nodes.functions import identity
from cachelib.nodes.leaves import endless, why_empty
from cachelib.nodes.left import stored
from cachelib.nodes.map import Function, mapped
from cachelib.nodes.mix import Mix
from cachelib.nodes.pack import Pack, holds_packs, pack
from cachelib.nodes.repeat import Repeat
from cachelib.nodes.selected import split
from cachelib.nodes.shuffle import Shuffle
from cachelib.nodes.slices import Slice
from cachelib.nodes.stored import Stored
from cachelib.nodes.then import Then
from cachelib.nodes.where import Comparisons, Condition, Predicate, where
from cachelib.nodes.windows import windows
from cachelib.order.blocks import BUDGET, WINDOW, Blocks
from cachelib.order.indices import LARGEST, as_indices, as_integer, outside
from cachelib.order.packing import Overlong, Plan, Progress, Rule
from cachelib.order.windows import Tail, WindowGrid
from cachelib.segments import Targets, check_targets


@dataclass(frozen=True)
class Dataset:
    """Rows in a defined order. Thread-safe and picklable where what it stands on is.

    The order is a pure function of what ``describe`` tells: no state, no start-up scan, and the
    same on every host.
    """

    node: Node

    def __repr__(self) -> str:
        """The links, rows and order: what grain takes a source for the same by."""
        description: Any = self.describe()
        links = []
        order = digest_of(description)[:16]
        while description is not None:
            links.append(description["kind"])
            description = description.get("of")
        return f"Dataset({'.'.join(reversed(links))}, rows={self.size}, order={order!r})"

    @property
    def size(self) -> int | None:
        """Number of rows; None for an endless dataset, and for one that grows until its cache is
        complete."""
        return self.node.size

    @property
    def endless(self) -> bool:
        """Whether there will never be a last row."""
        return endless(self.node)

    def __len__(self) -> int:
        if self.size is None:
            kind = "a dataset that grows" if grows(self.node) else "an endless dataset"
            raise TypeError(f"{kind} has no length: its size is None")
        return self.size

    def take(self, indices: Iterable[SupportsIndex] | np.ndarray) -> Columns:
        """The rows at ``indices``, in that order, repeats allowed.

        Args:
            indices: a one-dimensional array of any integer type, or an iterable of integers, each
                in [-size, size); an endless dataset has none below 0.

        Returns:
            A column for each field: an array of shape (n, *shape), or a `Ragged` of n rows.

        Raises:
            IndexError: an index is outside; names it and the size.
            TypeError: bools, floats, or anything else that is no integer.
        """
        return self.node.take(self._indices(indices))

    def __getitem__(self, index: SupportsIndex) -> dict[str, Any]:
        """One row, a value for each field: shape ``shape``, or (elements, *shape) if ragged."""
        return {name: column[0] for name, column in self.take([index]).items()}

    def origins(self, index: SupportsIndex) -> list[Origin]:
        """The rows of caches that a row is made of, in order, with source and position of each.

        Raises:
            IndexError: the index is outside.
        """
        return self.node.origins(int(self._indices([index])[0]))

    def trace(self, indices: Iterable[SupportsIndex] | np.ndarray) -> Columns:
        """Which rows stand at ``indices``, told by arithmetic alone: nothing is read.

        Returns:
            Three columns of shape (n,): ``component``, int32, the number among `components` of the
            one that the row comes from, or -1; ``row``, int64, its number below all orders: of the
            window among all windows, of the row of the cache, or of the pack, counted pool by pool;
            and ``epoch``, int64, the pass that it belongs to, of its component in a mixture.

        Raises:
            IndexError, TypeError: as of `take`.
        """
        return self.node.trace(self._indices(indices), 0)

    @property
    def components(self) -> tuple[str, ...]:
        """Names of what ``trace`` numbers as ``component``: those of the outermost mixtures."""
        return components(self.node)

    def windows(
        self,
        length: SupportsIndex,
        *,
        stride: SupportsIndex | None = None,
        tail: Tail = "drop",
        field: str = "tokens",
        documents: bool = False,
        targets: Targets | None = None,
    ) -> Dataset:
        """Windows over a ragged field, crossing rows and shards: row i begins at i * stride.

        Args:
            length: elements of a window.
            stride: distance of two starts, from 1 to ``length``; None means ``length``.
            tail: "drop" leaves out the elements after the last full window; "short" makes them
                a last, shorter one.
            field: the ragged field that is read.
            documents: tell documents apart, by columns ``segment_ids`` (int32, from 1 in each
                window) and ``positions`` (int32, from 0 in each segment).
            targets: add a column ``labels``, int32, -100 where there is no target: "aligned"
                labels a token with itself and the first of a segment with nothing, as HF models
                take it; "shifted" with the next token, which is read beyond the window's end.
                With ``documents`` none crosses the edge of a document.

        Returns:
            A dataset of a column named as the field and of its dtype: an array of shape
            (n, length, *shape) for tail "drop", always a `Ragged` for tail "short". The order of
            rows does not depend on documents and targets.

        Raises:
            ValueError: on anything but the rows of a cache in stored order. Shuffle the windows
                instead of windowing what is shuffled. Or documents or targets with tail "short",
                targets of values that are no token ids, or a field that is not ragged or not among
                those chosen.
            KeyError: there is no such field.
        """
        if grows(self.node):
            return self._windows_of_eras(length, stride, tail, field, documents, targets)
        if not can(self.node, Stream):
            kind = type(self.node).__name__.lower()
            raise ValueError(
                f"windows run over the rows of a cache in stored order, not over its {kind}: "
                "call windows() first, as in cache.windows(length).shuffle(seed)"
            )
        length = as_integer("length", length)
        stride = length if stride is None else as_integer("stride", stride)
        if not isinstance(documents, (bool, np.bool_)):
            raise TypeError(f"documents must be True or False, got {documents!r}")
        stream = cast(Stream, self.node)
        grid = WindowGrid(stream.elements(field), length, stride, tail)
        return Dataset(windows(stream, field, grid, bool(documents), targets))

    def pack(
        self,
        length: SupportsIndex | Mapping[str, SupportsIndex],
        *,
        seed: SupportsIndex = 0,
        overlong: Overlong = "split",
        max_segments: SupportsIndex | None = None,
        pad_id: SupportsIndex | Mapping[str, SupportsIndex] = 0,
        targets: Targets | None = None,
        plan: str | os.PathLike[str] | None = None,
        progress: Progress | None = None,
    ) -> Dataset:
        """Whole documents packed into rows, in a random order of rows.

        The lengths of all documents are read here, to plan how many packs there are, unless the
        plan is kept already; `packing` tells what becomes of the documents. Documents are spread
        over pools by the seed, each pool is packed by best-fit decreasing, and pools and their
        packs are permuted, otherwise in every pass of ``repeat``.

        Args:
            length: tokens of a pack; or values of several ragged fields, as in
                {"tokens": 4096, "frames": 512}.
            seed: any integer; of pools and order.
            overlong: what becomes of documents longer than a pack: "split" into pieces,
                "truncate_left" (the beginning is cut off) or "truncate_right" (the end), "drop",
                or "error". With several fields it must be "drop" or "error".
            max_segments: documents or pieces in a pack, at most; None for any number.
            pad_id: fills the rest of packs, in the (first) field; or a value for each of several
                columns by name. A column that is not named is filled with 0.
            targets: add a column ``labels`` of the (first) field, int32, -100 where there is no
                target, as of `windows`: "aligned" or "shifted". A segment, also a piece of a
                document that was split, stands alone: its first token is no target.
            plan: the path or URL of a JSON object that the plan is read from; if there is none,
                it is made and kept there. Of a followed cache it is a folder of such objects, one
                an era.
            progress: is called with how much is done and of how much, two for each document.

        Returns:
            A dataset of columns named as the fields, arrays of shape (n, length, *shape), and of
            ``segment_ids`` (from 1 in each pack, 0 is padding) and ``positions`` (from 0 in each
            segment, 0 in padding), int32 (n, length). For a second field they are named
            ``<field>_segment_ids`` and ``<field>_positions``; a document has the same segment id
            in both. Fields stored ``like`` a field come along with it, other ones do not.

        Raises:
            ValueError: on anything but the rows of a cache in stored order, or for values that do
                not fit; with "error", for a document that is too long.
            StateMismatch: ``plan`` is the plan of other packs: other rows, lengths, overlong,
                max_segments or seed; names what differs.
            CorruptData: ``plan`` is damaged, or no such object.
        """
        eras = self._rows_of_eras("pack") if grows(self.node) else None
        if eras is None and not can(self.node, Stream):
            kind = type(self.node).__name__.lower()
            raise ValueError(
                f"packs are made of the rows of a cache in stored order, not of its {kind}: "
                "call pack() first, as in cache.pack(length, seed=seed)"
            )
        lengths = length if isinstance(length, Mapping) else {"tokens": length}
        limits = tuple((name, as_integer("length", n)) for name, n in lengths.items())
        segments = None if max_segments is None else as_integer("max_segments", max_segments)
        rule = Rule(limits, overlong, segments)
        pads = pad_id if isinstance(pad_id, Mapping) else {rule.fields[0]: pad_id}
        exact = {name: as_integer("pad_id", value) for name, value in pads.items()}
        _check_progress(progress)
        if targets is not None:
            check_targets(targets)
        stream, seed = cast(Stream, self.node), as_integer("seed", seed)
        if eras is not None:
            cut = ByPack(rule, seed, tuple(exact.items()), targets, as_folder(plan))
            packs = replace(eras, cut=cut)
            layout(packs)  # what cannot be packed is told at once
            return Dataset(packs)
        return Dataset(pack(stream, rule, seed, exact, targets, plan, progress))

    def split(self, fraction: float, seed: SupportsIndex = 0) -> tuple[Dataset, Dataset]:
        """Two datasets that share no row: the rest, and what is held out.

        Which side a row is on is a hash of the seed and of its number, so that it stays there when
        the cache grows. Of each 1,024 rows, counted from row 0, as many are held out as bring the
        count of all rows up to them to the nearest integer of their share. Nothing is stored.

        Args:
            fraction: what is held out, above 0 and below 1.
            seed: any integer.

        Returns:
            (rest, held out), each in stored order.

        Raises:
            ValueError: on anything but the rows of a cache in stored order, or a `where` or a side
                of them: what is split later has parts of one document on both sides.
        """
        self._check_pinned("split")
        if isinstance(fraction, (bool, np.bool_)) or not isinstance(fraction, numbers.Real):
            raise TypeError(f"fraction must be a number, got {fraction!r}")
        rest, held = split(self.node, float(fraction), as_integer("seed", seed))
        return Dataset(rest), Dataset(held)

    def where(
        self,
        condition: Sequence[tuple[str, str, Any]] | Callable[[Columns], Any],
        *,
        columns: Sequence[str] | None = None,
        version: str | None = None,
        plan: str | os.PathLike[str] | None = None,
        progress: Progress | None = None,
    ) -> Dataset:
        """The rows that a condition holds for, in stored order.

        The columns that it asks about are read here, of all rows of which the plan does not tell
        already; what is held is a bit a row.

        Args:
            condition: a list of comparisons that must all hold, such as ("score", ">=", 0.5) or
                ("lang", "in", ["en", "de"]), on columns of one value a row or of text. Or a
                function of a module that takes columns as `take` gives them, and gives bools of
                shape (n,).
            columns: that the function takes.
            version: tells the function from earlier ones of that name; None tells them by source.
            plan: the path or URL of a folder of this condition's own, where it is kept for each
                version of the cache which rows are chosen. What is kept is read; of a cache that
                has grown only the rows that were added are asked.
            progress: is called with of how many rows it is known, and how many there are.

        Raises:
            ValueError: on anything but the rows of caches in stored order, or a condition that
                cannot be; with a plan, on anything but the rows of one cache.
            TypeError: a column and a value, or the function, that do not fit.
            KeyError: there is no such column.
            StateMismatch: ``plan`` is of another condition or other rows; names what differs.
            CorruptData: ``plan`` is damaged.
        """
        self._check_pinned("where")
        if not can(self.node, Stream):
            kind = type(self.node).__name__.lower()
            raise ValueError(
                f"conditions are on the rows of a cache in stored order, not on its {kind}: call "
                "where() first, as in cache.where(condition).windows(length)"
            )
        asked: Condition
        if not callable(condition):
            if columns is not None or version is not None:
                raise ValueError("columns and version are those of a function: leave them out")
            asked = Comparisons.of(condition)
        else:
            if columns is None:
                raise TypeError("columns must name what the function takes, got None")
            names = as_names("columns", columns)
            if not names:
                raise ValueError("columns must name what the function takes, at least one, got []")
            told = tuple(identity(condition, version).items())
            asked = Predicate(condition, names, told)
        _check_progress(progress)
        return Dataset(where(cast(Stream, self.node), asked, progress, plan))

    def map(
        self,
        function: Function,
        *,
        seed: SupportsIndex = 0,
        ragged: Sequence[str] | None = None,
        version: str | None = None,
    ) -> Dataset:
        """The rows, each changed by a function: one row in, one row out.

        The first row is made here, and tells what columns all others must have.

        Args:
            function: of a module; ``function(row, key)`` takes a value for each column, as
                ``dataset[i]`` gives them, and an int of 64 bits to draw random numbers by, and
                gives a dict of numbers, truth values and arrays. The key is a hash of the seed, of
                the pass and of the row, whatever order it comes in.
            seed: any integer.
            ragged: columns of the result whose first dimension varies, which become `Ragged`; all
                others have one shape. None for those that are ragged before.
            version: tells the function from earlier ones of that name; None tells them by source,
                which knows nothing of what the function calls.

        Raises:
            TypeError: the function cannot be found by its name, or gives something else.
            ValueError: the dataset is empty, or ``ragged`` does not fit. ``take`` raises it for a
                row whose columns, dtypes or shapes are not those of the first.
        """
        wait(self.node, 1)
        if self.size == 0:
            raise ValueError(
                "an empty dataset cannot be mapped, since no row shows its columns"
                f"{why_empty(self.node)}"
            )
        if isinstance(ragged, str):
            raise TypeError(f"ragged must be a sequence of names, got {ragged!r}")
        told = identity(function, version)
        return Dataset(mapped(self.node, function, told, as_integer("seed", seed), ragged))

    def shuffle(
        self,
        seed: SupportsIndex,
        *,
        block: SupportsIndex | None = None,
        window: SupportsIndex | None = None,
        budget: SupportsIndex | None = None,
    ) -> Dataset:
        """All rows in a pseudo-random order, which depends on seed, size, block and window only.

        Without ``block`` it is one permutation of all rows: each row is a read of its own. With it
        blocks of so many rows are read, in a random order, and rows are mixed within ``window``
        blocks that follow one another there.

        Args:
            seed: any integer; nearby seeds give unrelated orders.
            block: rows of a block; 16 read chunks' worth or more, so that few chunks are read for
                two blocks. None permutes all rows.
            window: blocks that are mixed with one another; 64 unless it is given.
            budget: bytes of decoded rows that may be held, `BUDGET` unless it is given; see
                `blocks`.

        Raises:
            ValueError: the dataset is endless; shuffle before repeat(). Or block or window do not
                fit the budget, or the rows do not lie side by side in storage. Or window or budget
                without block.
        """
        if grows(self.node):
            return self._shuffle_of_eras(seed, block, window, budget)
        if self.size is None:
            raise ValueError("an endless dataset cannot be shuffled: call shuffle() first")
        if holds_packs(self.node):
            raise ValueError(
                "packs are in random order already, and in another one a pool of them would be "
                "packed for every row: give the seed to pack(seed=) instead of shuffle()"
            )
        seed = as_integer("seed", seed)
        if block is None:
            for name, value in (("window", window), ("budget", budget)):
                if value is not None:
                    raise ValueError(
                        f"{name} needs block=...: without blocks all rows are permuted, got "
                        f"{name}={value!r}"
                    )
            return Dataset(Shuffle(self.node, seed))
        blocks = self.blocks(block, WINDOW if window is None else window)
        blocks.check(BUDGET if budget is None else as_integer("budget", budget))
        return Dataset(BlockShuffle(self.node, blocks, seed))

    def blocks(self, block: SupportsIndex, window: SupportsIndex = WINDOW) -> Blocks:
        """What ``shuffle(seed, block=block, window=window)`` would hold and read.

        Returns:
            Its ``working_set`` and ``block_bytes`` in bytes, and ``reads(batch_size)``: blocks
            read a batch.

        Raises:
            ValueError: the dataset is endless, or its rows do not lie side by side in storage.
        """
        self._check_pinned("blocks")
        if self.size is None or not can(self.node, Adjacent):
            kind = type(self.node).__name__.lower()
            raise ValueError(
                f"blocks are read where rows lie side by side in storage, which those of its "
                f"{kind} do not: call shuffle(seed, block=...) first, as in "
                "cache.windows(length).shuffle(seed, block=...)"
            )
        return Blocks(
            self.size,
            as_integer("block", block),
            as_integer("window", window),
            cast(Adjacent, self.node).row_bytes,
        )

    def slice(self, start: SupportsIndex, stop: SupportsIndex) -> Dataset:
        """Rows start to stop - 1, as Python's slices have them: -1 is the last row.

        A slice of a shuffle keeps its rows in every pass: what is set apart for evaluation stays
        apart. Shuffle the slice to give its passes orders of their own.

        Args:
            start: the first row, from -size to size; an endless dataset has no row below 0.
            stop: the row after the last one, in the same range, not before ``start``.

        Raises:
            ValueError: start or stop is outside, or stop comes before start.
        """
        self._check_pinned("slice")
        size = self.size
        found = []
        for name, value in (
            ("start", as_integer("start", start)),
            ("stop", as_integer("stop", stop)),
        ):
            low, high = (0, LARGEST) if size is None else (-size, size)
            if not low <= value <= high:
                raise ValueError(f"{name} must be from {low} to {high}, got {value}")
            found.append(value + (size or 0) if value < 0 else value)
        if found[1] < found[0]:
            raise ValueError(f"stop {stop} comes before start {start}")
        return Dataset(Slice(self.node, *found))

    def repeat(self, times: SupportsIndex | None = None) -> Dataset:
        """The rows again and again: row i is row i % size of pass i // size.

        Every pass has an order of its own, by a hash of the seed and its number; the first one is
        the order of the dataset itself.

        Args:
            times: number of passes, at least 1; None never ends.

        Raises:
            ValueError: the dataset is empty or endless already.
        """
        if not self.size and not (grows(self.node) and not self.endless):
            raise self._unsuited("repeated")
        rows = self.size or 1
        if times is not None:
            times = as_integer("times", times)
            if times < 1 or times * rows > LARGEST:
                raise ValueError(
                    f"times must be from 1 to {LARGEST // rows} for {rows} rows, got {times}"
                )
        return Dataset(Repeat(self.node, times))

    def loader(self, batch_size: BatchSize, **options: Any) -> Loader:
        """Batches for one data-parallel rank; the options are those of `Loader`."""
        return Loader(self, batch_size, **options)

    def evaluate(
        self,
        batch_size: SupportsIndex,
        *,
        dp_rank: SupportsIndex | None = None,
        dp_world: SupportsIndex = 1,
        apart_from: Dataset | Rows | None = None,
    ) -> Loader:
        """One pass over all rows, with as many steps on every rank.

        Every row counts once: the column ``weight`` is 0 for the padding of the last batch.

        Args:
            batch_size: rows of a batch over all ranks.
            dp_rank, dp_world: as of `Loader`.
            apart_from: what is trained on: see `check_apart`.

        Raises:
            ValueError: the dataset is endless or empty, or shares rows with ``apart_from``.
        """
        self._check_pinned("evaluate")
        if apart_from is not None:
            self.check_apart(apart_from)
        if not self.size:
            raise self._unsuited("evaluated")
        return Loader(
            self, batch_size, dp_rank=dp_rank, dp_world=dp_world, last="pad", uneven="pad"
        )

    def check_apart(self, training: Dataset | Rows) -> None:
        """Check that no row of a cache is in both this dataset and another one.

        Sides of splits and conditions are compared row by row; a slice counts as its own rows if it
        is one of rows, and as all rows below if it is one of windows or packs. A copy of a cache is
        the same cache, up to where one of them has grown since. Other rows that are equal, in
        different caches or twice in one, are not found.

        Args:
            training: a dataset, or a cache for all its rows.

        Raises:
            ValueError: there is such a row; names it, and what each dataset has of its cache.
        """
        self._check_pinned("check_apart")
        if isinstance(training, Rows):
            training = of(training)
        if not isinstance(training, Dataset):
            raise TypeError(f"a dataset is compared with a dataset or a cache, got {training!r}")
        check_apart(training.node, self.node)

    @property
    def packing(self) -> Plan:
        """How documents were packed: ``accounts`` of what became of them, ``utilisation``.

        Raises:
            TypeError: the dataset is no packs itself.
        """
        if not isinstance(self.node, Pack):
            kind = type(self.node).__name__.lower()
            raise TypeError(f"a {kind} has no packing: ask what pack() gave")
        return self.node.plan

    @property
    def version(self) -> Version:
        """The version of the cache that is read; of several, by component or by stage."""
        return self.node.version

    @property
    def borders(self) -> tuple[int, ...]:
        """Positions that no batch may cross, because the columns change there."""
        return self.node.borders if isinstance(self.node, Then) else ()

    def counts(self, position: SupportsIndex) -> dict[str, int]:
        """Rows of each component among the first ``position`` rows of a mixture.

        Raises:
            TypeError: the dataset is no mixture itself.
            IndexError: the position is outside [0, size].
        """
        if not isinstance(self.node, Mix):
            kind = type(self.node).__name__.lower()
            raise TypeError(f"a {kind} has no components to count: ask what mix() gave")
        position = as_integer("position", position)
        if not 0 <= position <= (LARGEST if self.size is None else self.size):
            raise outside(position, self.size)
        return self.node.counts(position)

    def describe(self, until: int | None = None) -> dict[str, Any]:
        """What the order depends on, as JSON: nested descriptions, outermost first.

        Args:
            until: describe what the rows before this position depend on; None describes all.
        """
        return described(self.node, until)

    def epoch_of(self, position: int) -> int:
        """Which pass a position belongs to: 0 unless the dataset is repeated."""
        return self.node.epoch_of(position) if isinstance(self.node, Repeat) else 0

    def _indices(self, indices: Iterable[SupportsIndex] | np.ndarray) -> np.ndarray:
        size = self.size
        return as_indices(indices, size, grows=size is None and not self.endless)

    def _windows_of_eras(
        self,
        length: SupportsIndex,
        stride: SupportsIndex | None,
        tail: Tail,
        field: str,
        documents: bool,
        targets: Targets | None,
    ) -> Dataset:
        eras = self._rows_of_eras("windows")
        length = as_integer("length", length)
        stride = length if stride is None else as_integer("stride", stride)
        if tail != "drop":
            raise ValueError(
                f"tail={tail!r} needs to know where a cache ends, which a followed one does not "
                "tell before it is complete: use tail='drop', or open it at a version"
            )
        eras.stored.alike(field)  # a field that is not there, or not ragged, is told at once
        WindowGrid(0, length, stride)
        cut = ByWindow(field, length, stride, bool(documents), targets)
        found = replace(eras, cut=cut)
        layout(found)
        return Dataset(found)

    def _shuffle_of_eras(self, seed: SupportsIndex, *blocks: SupportsIndex | None) -> Dataset:
        eras = self.node
        if isinstance(eras, Eras) and isinstance(eras.cut, ByPack):
            raise ValueError("packs are in random order already: give the seed to pack(seed=)")
        if any(value is not None for value in blocks):
            raise ValueError(
                "eras of a followed cache are shuffled as a whole: leave block, window and budget "
                "out, or open it at a version"
            )
        if not isinstance(eras, Eras) or eras.seed is not None:
            kind = type(eras).__name__.lower()
            raise ValueError(
                "rows and windows of a followed cache are shuffled once and before anything else, "
                f"as in windows(length).shuffle(seed), and not its {kind}"
            )
        return Dataset(replace(eras, seed=as_integer("seed", seed)))

    def _rows_of_eras(self, method: str) -> Eras:
        """The node, which must be rows of a followed cache in stored order."""
        eras = self.node
        if not isinstance(eras, Eras) or not isinstance(eras.cut, ByRow) or eras.seed is not None:
            raise ValueError(
                f"{method}() of a followed cache comes first, as in "
                f"cachelib.open(path, follow=True).{method}(length)"
            )
        return eras

    def _check_pinned(self, method: str) -> None:
        if grows(self.node):
            raise ValueError(
                f"{method}() needs a pinned cache: a followed one has windows, pack, shuffle, map, "
                "repeat, loader, and a place in mixtures. Open it without follow, at a version, to "
                f"call {method}()"
            )

    def _unsuited(self, act: str) -> ValueError:
        """The error for an endless dataset, or one without rows, in words such as "repeated"."""
        if self.size is None:
            return ValueError(f"an endless dataset cannot be {act}")
        return ValueError(f"an empty dataset cannot be {act}{why_empty(self.node)}")


def of(rows: Rows, fields: Sequence[str] | None = None) -> Dataset:
    """The rows of a cache in stored order, all fields or just those named.

    Rows that were deleted are not among them: the others are counted over the gaps.

    Raises:
        TypeError: rows are no cache, or fields no sequence of names.
        KeyError: there is no such field.
        ValueError: fields name none.
    """
    if not isinstance(rows, Rows):
        raise TypeError(f"rows must be a cache, as cachelib.open gives one, got {rows!r}")
    names = None if fields is None else as_names("fields", fields)
    if names == ():
        raise ValueError("fields must name at least one, got []; None is all of them")
    node = Eras(Stored(rows, names)) if isinstance(rows, Following) else stored(rows, names)
    if names is not None:
        layout(node)  # what is not there is told at once
    return Dataset(node)


def _check_progress(progress: object) -> None:
    if progress is not None and not callable(progress):
        raise TypeError(f"progress must be a function of (done, total), got {progress!r}")
