"""Segments, positions, labels and edges, against what a loop over the tokens gives."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import cachelib
from cachelib import dataset, segments
from cachelib.format.schema import Field, Schema
from cachelib.ragged import Ragged
from tests.reader.memory import MemoryCache
from tests.reader.stored import write_columns, write_frames, write_masks

lengths_of_rows = st.lists(st.integers(0, 9), min_size=1, max_size=30).filter(lambda x: sum(x) > 0)


def owners_of(lengths):
    return np.repeat(np.arange(len(lengths)), lengths)


@given(lengths_of_rows, st.integers(1, 12), st.integers(1, 12))
def test_windows_tell_documents_and_targets_as_a_loop_does(lengths, length, stride):
    cache = MemoryCache(lengths)
    owners, total = owners_of(lengths), sum(lengths)
    stride = min(stride, length)
    plain = dataset.of(cache).windows(length, stride=stride)
    wholes = {
        (documents, targets): dataset.of(cache).windows(
            length, stride=stride, documents=documents, targets=targets
        )
        for documents in (False, True)
        for targets in (None, "aligned", "shifted")
    }
    for (documents, targets), ds in wholes.items():
        assert ds.describe() == plain.describe()
        columns = ds.take(np.arange(len(ds)))
        np.testing.assert_array_equal(
            columns["tokens"], plain.take(np.arange(len(ds)))["tokens"], strict=True
        )
        expected = {"tokens"}
        expected |= {"segment_ids", "positions"} if documents else set()
        expected |= {"labels"} if targets else set()
        assert set(columns) == expected
        for row in range(len(ds)):
            start, segment, position = row * stride, 0, 0
            for i in range(length):
                at = start + i
                begins = i == 0 or (documents and owners[at] != owners[at - 1])
                segment += begins
                position = 0 if begins else position + 1
                if documents:
                    assert columns["segment_ids"][row, i] == (segment if documents else 1)
                    assert columns["positions"][row, i] == position
                if targets == "aligned":
                    assert columns["labels"][row, i] == (-100 if begins else at)
                if targets == "shifted":
                    follows = at + 1 < total and not (documents and owners[at + 1] != owners[at])
                    assert columns["labels"][row, i] == (at + 1 if follows else -100)


def test_dtypes():
    columns = dataset.of(MemoryCache([5, 5])).windows(4, documents=True, targets="aligned").take([])
    assert {name: (str(c.dtype), c.shape) for name, c in columns.items()} == {
        "tokens": ("uint32", (0, 4)),
        "segment_ids": ("int32", (0, 4)),
        "positions": ("int32", (0, 4)),
        "labels": ("int32", (0, 4)),
    }


def test_padding_is_no_target_and_a_segment_of_its_own():
    ids = np.array([[1, 1, 2, 0, 0], [1, 1, 1, 1, 1]], np.int32)
    tokens = np.array([[7, 8, 9, 3, 3], [4, 5, 6, 7, 8]])
    assert segments.positions(ids).tolist() == [[0, 1, 0, 0, 1], [0, 1, 2, 3, 4]]
    aligned = segments.labels(tokens, ids, "aligned")
    assert aligned.tolist() == [[-100, 8, -100, -100, -100], [-100, 5, 6, 7, 8]]
    shifted = segments.labels(tokens, ids, "shifted")
    assert shifted.tolist() == [[8, -100, -100, -100, -100], [5, 6, 7, 8, -100]]
    edges, longest = segments.cu_seqlens(ids, 6)
    assert (edges.tolist(), longest, edges.dtype) == ([0, 2, 3, 5, 10, 10, 10], 5, np.int32)


def test_more_segments_than_there_is_room_for_are_refused():
    with pytest.raises(ValueError, match=r"3 segments .* more than max_segments=2"):
        segments.cu_seqlens(np.array([[1, 2, 3]], np.int32), 2)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"targets": "next"}, "targets must be one of .*, got 'next'"),
        ({"targets": "shifted", "tail": "short"}, "use tail='drop'"),
        ({"documents": True, "tail": "short"}, "use tail='drop'"),
    ],
)
def test_refuses(options, message):
    with pytest.raises(ValueError, match=message):
        dataset.of(MemoryCache([5])).windows(2, **options)


def test_documents_of_values_of_a_shape(tmp_path):
    write_frames(tmp_path, [2, 0, 5, 1])
    columns = cachelib.open(tmp_path).windows(4, field="frames", documents=True).take([1, 0])
    assert columns["frames"].shape == (2, 4, 3)
    assert columns["frames"][:, :, 0].tolist() == [[4, 5, 6, 7], [0, 1, 2, 3]]
    assert columns["segment_ids"].tolist() == [[1, 1, 1, 2], [1, 1, 2, 2]]
    assert columns["positions"].tolist() == [[0, 1, 2, 0], [0, 1, 0, 1]]


def test_only_token_ids_are_labelled(tmp_path):
    write_frames(tmp_path / "frames", [2, 0, 5, 1])
    write_masks(tmp_path / "masks", [3, 4])
    for name, field, kind in (
        ("frames", "frames", r"float32 and shape \(3,\)"),
        ("masks", "mask", r"bool and shape \(\)"),
    ):
        with pytest.raises(ValueError, match=f"labels token ids.*{field!r} of {kind} does not"):
            cachelib.open(tmp_path / name).windows(2, field=field, targets="aligned")


def test_no_added_column_takes_the_place_of_the_field(tmp_path):
    schema = Schema((Field("labels", "uint16", ragged=True),))
    values = Ragged.from_rows([np.arange(6)], np.uint16)
    write_columns(tmp_path, schema, {"labels": values})
    cache = cachelib.open(tmp_path)
    with pytest.raises(ValueError, match=r"two columns 'labels': .* add \['labels'\]"):
        cache.windows(2, field="labels", targets="shifted")
    assert set(cache.windows(2, field="labels", documents=True)[0]) == {
        "labels", "segment_ids", "positions",
    }  # fmt: skip


def test_labels_of_other_targets_or_shapes_are_refused():
    tokens, ids = np.ones((2, 4), np.uint16), np.ones((2, 4), np.int32)
    others: list[Any] = ["align", None, ["aligned"]]
    for targets in others:
        with pytest.raises(ValueError, match=r"targets must be one of \('aligned', 'shifted'\)"):
            segments.labels(tokens, ids, targets)
    for wrong in (ids[:, :3], ids[:1], ids[0]):
        with pytest.raises(ValueError, match=r"one shape \(rows, length\), got \(2, 4\) and"):
            segments.labels(tokens, wrong, "aligned")
    for of in (
        segments.segment_ids,
        segments.positions,
        lambda flat: segments.labels(flat, flat, "aligned"),
        lambda flat: segments.cu_seqlens(flat, 4),
    ):
        with pytest.raises(ValueError, match=r"shape \(rows, length\), got shape \(4,\)"):
            of(ids[0])
