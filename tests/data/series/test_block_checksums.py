"""Checksums of blocks: changed bytes of a packed series are found, by sample at opening and all by `info --check`."""

import json

import numpy as np
import pytest

from cellerate.data.series.block_checksums import BLOCK_BYTES, block_checksums, damaged_byte
from cellerate.data.series.pack import _own_checksum, open_packed
from cellerate.data.series.packing import pack_series
from cellerate.data.series.series import open_series
from cellerate.data.settings import Reading
from cellerate.errors import DataError
from cellerate.tasks.describe import file_info


@pytest.fixture
def packed(tmp_path):
    lines = [f"2024-01-01 00:{row // 60:02}:{row % 60:02},{row}\n" for row in range(3600)]
    (tmp_path / "t.csv").write_text("time,y\n" + "".join(lines))
    pack_series(tmp_path / "t.csv", tmp_path / "t.series", Reading())
    return tmp_path / "t.series"


def flip(path, at):
    content = bytearray(path.read_bytes())
    content[at] ^= 1
    path.write_bytes(content)


@pytest.mark.parametrize("size", [0, 1, BLOCK_BYTES - 1, BLOCK_BYTES, 3 * BLOCK_BYTES + 5])
def test_whole_file_is_as_it_was_and_each_other_length_is_found(tmp_path, size):
    path = tmp_path / "f"
    content = np.random.default_rng(0).bytes(size)
    path.write_bytes(content)
    checksums = block_checksums(path)
    assert damaged_byte(path, checksums, every=True) is None
    path.write_bytes(content + b"x")
    assert damaged_byte(path, checksums, every=False) is not None
    if size:
        path.write_bytes(content[:-1])
        assert damaged_byte(path, checksums, every=False) is not None


def test_every_flipped_bit_is_found_when_all_is_checked_and_some_by_sample(tmp_path):
    blocks = 64
    path = tmp_path / "f"
    path.write_bytes(bytes(blocks * BLOCK_BYTES))
    checksums = block_checksums(path)
    found = 0
    for block in range(blocks):
        flip(path, block * BLOCK_BYTES + 77)
        assert damaged_byte(path, checksums, every=True) == block * BLOCK_BYTES
        found += damaged_byte(path, checksums, every=False) == block * BLOCK_BYTES
        flip(path, block * BLOCK_BYTES + 77)
    # 16 of 64 blocks are looked at: about 16 are found. The first and the last always are.
    assert 2 <= found < 40
    for block in (0, blocks - 1):
        flip(path, block * BLOCK_BYTES)
        assert damaged_byte(path, checksums, every=False) == block * BLOCK_BYTES
        flip(path, block * BLOCK_BYTES)


@pytest.mark.parametrize("name", ["values.npy", "times.npy", "segments.npy"])
def test_overwritten_contents_of_a_packed_series_are_refused_by_name(packed, name):
    flip(packed / name, -5)
    with pytest.raises(DataError, match=rf"t\.series is damaged: {name}.*[Pp]ack it again"):
        open_packed(packed)


@pytest.mark.parametrize(("old", "new"), [('"time"', '"tame"'), ('"rows": 3600', '"rows": 3601')])
def test_changed_description_is_refused(packed, old, new):
    description = packed / "series.json"
    text = description.read_text()
    assert old in text
    description.write_text(text.replace(old, new))
    with pytest.raises(DataError, match="is damaged"):
        open_packed(packed)


def test_other_values_of_the_same_shape_are_not_trained_on(packed):
    values = np.load(packed / "values.npy")
    np.save(packed / "values.npy", values[::-1])
    with pytest.raises(DataError, match=r"values\.npy has changed since it was written"):
        open_series(packed, Reading(targets=["y"]))


def test_info_says_how_much_of_a_series_was_checked(packed):
    assert file_info(packed)["checked"] == "a sample"
    assert file_info(packed, check=True)["checked"] == "all"


@pytest.mark.parametrize("checksums", [{}, {"values.npy": "é", "times.npy": ""}, [], {"values.npy": 3}])
def test_checksums_that_are_none_are_damage(packed, checksums):
    description = packed / "series.json"
    told = json.loads(description.read_text()) | {"checksums": checksums}
    del told["checksum"]
    description.write_text(json.dumps(told | {"checksum": _own_checksum(told)}))
    with pytest.raises(DataError, match="is damaged"):
        open_packed(packed)


def test_damaged_copy_in_the_cache_is_made_anew(tmp_path, monkeypatch):
    monkeypatch.setenv("CELLERATE_CACHE", str(tmp_path / "kept"))
    (tmp_path / "t.csv").write_text("y\n" + "".join(f"{row}\n" for row in range(500)))
    wanted = np.array(open_series(tmp_path / "t.csv", Reading(targets=["y"])).values)
    (values,) = (tmp_path / "kept").rglob("values.npy")
    flip(values, -3)
    data = open_series(tmp_path / "t.csv", Reading(targets=["y"]))
    assert not data.cached
    np.testing.assert_array_equal(data.values, wanted)
