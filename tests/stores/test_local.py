"""Caches in object stores, read through a folder of this machine."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

import cachelib
from cachelib.local.entry import FORMS, Form
from cachelib.local.tier import Tier, _entries
from tests.cachelib.helpers import EVERY_KIND, assert_equal, random_columns, take, write_cache
from tests.stores.conftest import Place

pytestmark = pytest.mark.engine


@pytest.mark.parametrize("form", FORMS)
def test_a_second_pass_asks_the_store_for_no_rows(place: Place, tmp_path: Path, form: Form) -> None:
    columns = random_columns(EVERY_KIND, [3, 0, 5, 1] * 300, seed=1)
    write_cache(f"{place.url}/cache", EVERY_KIND, columns, [[500], [700]])

    def opened() -> tuple[cachelib.Cache, Tier]:
        cache = cachelib.open(f"{place.url}/cache", local=tmp_path / "tier", local_format=form)
        assert cache.local is not None
        return cache, cache.local

    first, tier = opened()
    assert_equal(first.take(range(1200)), columns)
    tier.wait()
    assert tier.counts.downloaded == len(list((tmp_path / "tier").iterdir()))
    for file in list((tmp_path / "tier").iterdir())[::3]:
        file.write_bytes(b"")
    _entries().clear()
    mended, tier = opened()
    assert_equal(mended.take(range(1200)), columns)
    tier.wait()
    assert tier.counts.damaged == tier.counts.downloaded > 0
    for key in place.keys("cache/shards/"):
        place.delete(key)
    _entries().clear()
    second, tier = opened()
    rows = np.array([1, 700, 1199, 1])
    assert_equal(second.take(rows), take(columns, rows))
    assert tier.counts.misses == 0
