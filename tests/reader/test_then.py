"""then(): datasets one after another."""

from __future__ import annotations

import json
from typing import Any

import pytest

import cachelib
from cachelib import dataset
from cachelib.errors import StateMismatch
from tests.reader.memory import MemoryCache, SimulatedCache

CACHE = MemoryCache([4] * 100)
SHORT, LONG = (dataset.of(CACHE).windows(length) for length in (4, 8))


def counted(rows):
    return dataset.of(SimulatedCache(rows))


def labels(ds, indices):
    return ds.take(indices)["label"].tolist()


def test_stages_follow_one_another():
    ds = cachelib.then([(3, counted(10)), (None, counted(2)), (2, counted(5).repeat())])
    assert len(ds) == 7
    assert labels(ds, range(7)) == [0, 1, 2, 0, 1, 0, 1]
    assert labels(ds, [6, 0, 3, 0]) == [1, 0, 0, 0]
    assert labels(ds, []) == []
    assert ds.borders == ()


def test_a_last_stage_may_never_end():
    ds = cachelib.then([(3, counted(10)), (None, counted(4).repeat())])
    assert ds.size is None
    assert labels(ds, [2, 3, 2**63 - 1]) == [2, 0, (2**63 - 4) % 4]


def test_sequence_lengths_may_change():
    ds = cachelib.then([(8, SHORT.shuffle(0)), (None, LONG.shuffle(0))])
    assert ds.borders == (8,)
    batches = list(ds.loader(4))
    assert [batch["tokens"].shape for batch in batches] == [(4, 4)] * 2 + [(4, 8)] * 12
    assert batches[2]["tokens"].tolist() == LONG.shuffle(0).take(range(4))["tokens"].tolist()


def test_no_batch_crosses_a_change_of_columns():
    ds = cachelib.then([(8, SHORT), (None, LONG.repeat())])
    message = "a batch of 3 would cross sample 8"
    with pytest.raises(ValueError, match=message):
        ds.loader(3)
    assert next(ds.loader(3, start=ds.loader(8, start=1).state_dict()))["tokens"].shape == (
        3,
        8,
    )
    with pytest.raises(ValueError, match="to both sides of sample 8 were asked for at once"):
        ds.take([7, 8])


def test_passes_have_orders_of_their_own():
    once = cachelib.then([(3, counted(10).shuffle(0)), (2, counted(5).repeat())])
    ds = once.repeat(3)
    assert labels(ds, range(5)) == labels(once, range(5))
    assert labels(ds, range(5, 8)) == labels(counted(10).shuffle(0).repeat(), range(10, 13))
    # What never ends goes on.
    assert [labels(ds, range(e, e + 2)) for e in (3, 8, 13)] == [[0, 1], [2, 3], [4, 0]]


def test_versions_of_all_stages():
    ds = cachelib.then([(8, SHORT), (8, LONG)])
    assert ds.loader(8).state_dict()["version"] == [1, 1]


def test_a_state_fits_as_long_as_what_came_before_is_the_same():
    first, second = (50, counted(100).shuffle(0)), (30, counted(100).shuffle(1))
    loader = cachelib.then([first, second]).loader(10, start=4)
    for samples, fitting, others in (
        (40, [[first], [(40, first[1])], [first, (9, counted(9))], [first, second, second]], []),
        (
            50,
            [[first, second], [first, (10, counted(100))]],
            [[(40, first[1]), second], [(60, counted(100).shuffle(2)), second], [(60, first[1])]],
        ),
        (60, [[first, (10, second[1])]], [[first, (30, counted(100))], [first], [(51, first[1])]]),
    ):
        state = json.loads(json.dumps({**loader.state_dict(), "samples": samples}))
        state["order"] = (
            cachelib.then([first, second]).loader(10, start=samples // 10).state_dict()["order"]
        )
        for stages in fitting:
            assert cachelib.then(stages).loader(10, start=state).samples == samples
        for stages in others[:2] if samples == 50 else others:
            with pytest.raises(StateMismatch, match=r"then\.starts|then\[\d\]"):
                cachelib.then(stages).loader(10, start=state)


@pytest.mark.parametrize(
    ("stages", "message"),
    [
        ([], "at least one stage"),
        ([(None, counted(4).repeat()), (3, counted(9))], "stage 0 never ends, so nothing can"),
        ([(3, counted(9)), (10, counted(9))], "stage 1 has 10 samples: use 1 to 9, or repeat"),
        ([(0, counted(9))], "stage 0 has 0 samples: use 1 to 9"),
        ([(2, counted(0))], "stage 0 is empty"),
        ([(2**62, counted(1).repeat())] * 2, "all stages together have more than"),
    ],
)
def test_refuses(stages, message):
    with pytest.raises(ValueError, match=message):
        cachelib.then(stages)


def test_refuses_other_types():
    wrong: list[tuple[Any, str]] = [
        ((1, "web"), "stage 0 must be a dataset or a cache, got 'web'"),
        ((1.0, counted(3)), "samples must be an integer, got 1.0"),
    ]
    for stage, message in wrong:
        with pytest.raises(TypeError, match=message):
            cachelib.then([stage])


def test_refuses_what_is_no_list_of_pairs():
    wrong: list[tuple[Any, str]] = [
        (5, r"stages must be a list of \(samples, dataset\) pairs, got 5"),
        (None, r"stages must be a list of .*, got None"),
        (counted(3), r"stages must be a list of .*, got Dataset\(cache"),
        ({"web": counted(3)}, r"stages must be a list of .*, got \{'web'"),
        ([counted(3)], r"stage 0 must be a pair \(samples, dataset\), got Dataset\(cache"),
        ([(3, counted(3)), (1, 2, 3)], r"stage 1 must be a pair .*, got \(1, 2, 3\)"),
    ]
    for stages, message in wrong:
        with pytest.raises(TypeError, match=message):
            cachelib.then(stages)
