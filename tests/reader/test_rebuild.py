"""Datasets made again from their description: the same rows and columns, or an error."""

from __future__ import annotations

import json
import shutil
from typing import Any

import numpy as np
import pytest

import cachelib
from cachelib import dataset
from cachelib.errors import CacheNotFound, StateMismatch
from cachelib.recipe import recipe
from tests.reader.functions_of_rows import doubled, thirds
from tests.reader.stored import write_commit, write_masks


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    path = tmp_path_factory.mktemp("caches")
    write_commit(path / "web", [[3, 5, 7, 9] * 20, [4] * 8])
    write_commit(path / "web", [[6] * 9])
    write_commit(path / "code", [[8] * 40])
    write_masks(path / "masks", [3, 1, 4, 1, 5] * 9)
    return path


def web(folder):
    return cachelib.open(folder / "web")


def code(folder):
    return cachelib.open(folder / "code").windows(4)


def mixed(folder, **options):
    parts = {"web": web(folder).windows(4).shuffle(1).repeat(), "code": code(folder).shuffle(2)}
    return cachelib.mix(
        parts,
        stages=[(0, {"web": 1}), (16, {"web": 3, "code": 1})],
        seed=5,
        block=8,
        exhausted="renormalise",
    )


DATASETS = {
    "stored": lambda at: web(at).dataset(),
    "fields": lambda at: dataset.of(web(at), ["label"]).shuffle(1),
    "an earlier version": lambda at: cachelib.open(at / "web", 0).shuffle(1),
    "windows": lambda at: web(at).windows(8, stride=3, tail="short").shuffle(9),
    "told": lambda at: web(at).windows(8, documents=True, targets="shifted").shuffle(9),
    "blocks": lambda at: web(at).windows(4).shuffle(9, block=8, window=3).repeat(2),
    "pack": lambda at: (
        cachelib.open(at / "masks").pack({"tokens": 8}, seed=3, pad_id=7, max_segments=3).repeat()
    ),
    "pack with targets": lambda at: web(at).pack(8, seed=3, targets="shifted"),
    "slice": lambda at: web(at).windows(4).shuffle(1).slice(3, -5).shuffle(2).repeat(),
    "mix": mixed,
    "then": lambda at: cachelib.then([(20, code(at).shuffle(1)), (None, mixed(at))]),
    "concat": lambda at: (
        cachelib.concat({"web": web(at), "code": cachelib.open(at / "code")}).windows(8).shuffle(2)
    ),
    "split": lambda at: web(at).split(0.3, seed=4)[0].windows(8).shuffle(2),
    "where": lambda at: web(at).where([("label", "<", 700)]).split(0.2)[1].shuffle(2).repeat(),
    "nested": lambda at: cachelib.mix(
        {"mixed": mixed(at), "code": code(at).repeat()}, {"mixed": 1, "code": 2}, seed=1
    ),
}


def saved(loader):
    return json.loads(json.dumps(loader.description()))


@pytest.mark.parametrize("made", DATASETS.values(), ids=DATASETS)
def test_makes_the_same_dataset(folder, made):
    ds = made(folder)
    again = cachelib.rebuild(saved(ds.loader(2)))
    assert again.describe() == ds.describe()
    assert again.version == ds.version
    assert again.size == ds.size
    indices = range(20)
    expected = ds.take(indices)
    found = again.take(indices)
    assert list(found) == list(expected)
    for name, column in expected.items():
        same = column.values if isinstance(column, cachelib.Ragged) else column
        other = found[name].values if isinstance(column, cachelib.Ragged) else found[name]
        np.testing.assert_array_equal(other, same)
        assert other.dtype == same.dtype
    state = ds.loader(2, start=3).state_dict()
    assert again.loader(2, start=state).state_dict() == state


def test_a_description_tells_how_batches_are_cut(folder):
    loader = web(folder).loader([(0, 4), (8, 2)], last="short")
    assert saved(loader)["batches"] == {
        "sizes": [[0, 4], [8, 2]],
        "last": "short",
        "start": [0, 0],
    }


@pytest.mark.parametrize(
    ("make", "kind"),
    [
        (lambda rows: rows.map(doubled), "map"),
        (lambda rows: rows.where(thirds, columns=["label"]), "where by a function"),
    ],
)
def test_functions_are_not_found_again(folder, make, kind):
    description = saved(make(web(folder)).shuffle(1).loader(2))
    with pytest.raises(StateMismatch, match=f"a dataset with a {kind} cannot be made again"):
        cachelib.rebuild(description)


def test_names_what_it_cannot_make(folder):
    class Odd:
        pass

    odd: Any = Odd()
    description = saved(web(folder).loader(2))
    description["dataset"] = {"kind": "shuffle", "seed": 1, "of": recipe(odd)}
    with pytest.raises(StateMismatch, match="a dataset with a odd cannot be made again"):
        cachelib.rebuild(description)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"dataset": {}}, "no description of a loader: no 'kind' in it"),
        ({"dataset": {"kind": "shuffle", "seed": 1}}, "no 'of' in it"),
        ({"dataset": None}, "no description of a loader"),
        ({"order": {"kind": "cache", "rows": 5}}, "cache.rows is 5 in the description, but 97"),
    ],
)
def test_refuses_what_is_no_description(folder, change, message):
    with pytest.raises(StateMismatch, match=message):
        cachelib.rebuild({**saved(web(folder).loader(2)), **change})
    with pytest.raises(StateMismatch, match="no 'order' in it"):
        cachelib.rebuild({})


def test_refuses_caches_of_other_rows(folder, tmp_path):
    write_commit(tmp_path / "web", [[3, 5, 7]])
    description = saved(cachelib.open(tmp_path / "web").windows(4).shuffle(1).loader(2))
    shutil.rmtree(tmp_path / "web")
    with pytest.raises(CacheNotFound):
        cachelib.rebuild(description)
    write_commit(tmp_path / "web", [[3, 5, 9]])
    with pytest.raises(StateMismatch, match=r"cache.elements\[tokens\] is 15 in .*, but 17 here"):
        cachelib.rebuild(description)
