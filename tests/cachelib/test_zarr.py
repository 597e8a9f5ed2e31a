"""Any Zarr reader can read a shard: here zarr-python, which knows nothing of Forebay."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import zarr

from cachelib.format.schema import Field, Schema
from cachelib.format.shard import attempt_prefix
from cachelib.format.storage import Storage
from cachelib.ragged import Ragged
from tests.cachelib.helpers import EVERY_KIND, assert_same_bits, random_columns, write_shard


@pytest.mark.filterwarnings("ignore:Object at details.json")  # not one of Zarr's, but ours
@pytest.mark.parametrize("lengths", [[0], [3, 0, 1], [2, 0, 1] * 350], ids=len)
def test_zarr_python_reads_a_shard(tmp_path: Path, lengths: list[int]) -> None:
    columns = random_columns(EVERY_KIND, lengths, seed=3)
    manifest = write_shard(Storage.at(tmp_path), EVERY_KIND, "a", columns)
    group = zarr.open_group(
        str(tmp_path / attempt_prefix("a", manifest.attempt)), mode="r", zarr_format=3
    )
    assert sorted(group) == ["_position", "_source", "big", "frames", "good", "label", "mask",
                             "score", "time", "title", "tokens", "weights"]  # fmt: skip
    for field in EVERY_KIND.fields:
        column = columns[field.name]
        data = group[f"{field.name}/data"]
        assert isinstance(data, zarr.Array)
        assert data.shape[0] == (manifest.elements[field.like or field.name] if field.ragged
                                 else len(lengths))  # fmt: skip
        values = column.values if isinstance(column, Ragged) else column
        assert_same_bits(np.asarray(data[:]), values)
        if isinstance(column, Ragged) and field.like is None:
            offsets = group[f"{field.name}/offsets"]
            assert isinstance(offsets, zarr.Array)
            assert_same_bits(np.asarray(offsets[:]), column.offsets)
        else:
            assert f"{field.name}/offsets" not in group
    position, source = group["_position/data"], group["_source/data"]
    assert isinstance(position, zarr.Array)
    assert isinstance(source, zarr.Array)
    assert_same_bits(np.asarray(position[:]), np.arange(len(lengths)))
    assert_same_bits(np.asarray(source[:]), np.zeros(len(lengths), np.uint32))


def test_a_flipped_byte_is_seen_by_zarr_python(tmp_path: Path) -> None:
    schema = Schema((Field("x", "uint16"),))
    columns = random_columns(schema, [0] * 300, seed=3)
    manifest = write_shard(Storage.at(tmp_path), schema, "a", columns)
    folder = tmp_path / attempt_prefix("a", manifest.attempt)
    file = folder / "x/data/c/0"
    data = bytearray(file.read_bytes())
    data[300] ^= 1
    file.write_bytes(data)
    array = zarr.open_group(str(folder), mode="r")["x/data"]
    assert isinstance(array, zarr.Array)
    with pytest.raises(ValueError, match="checksum"):
        array[:]
