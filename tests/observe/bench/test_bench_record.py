"""What a run leaves behind is read back as it was, and what anybody else wrote is an error that says where."""

import json

import pytest

from cellerate.errors import DataError
from cellerate.observe.bench.record import read_record, to_json, write_record


@pytest.fixture
def told(made):
    """A record as JSON values, to be spoilt."""
    return json.loads(json.dumps(to_json(made(sessions=1))))


def test_record_read_again_is_the_same(made, tmp_path):
    record = made()
    write_record(record, tmp_path / "a.json")
    assert read_record(tmp_path / "a.json") == record


def test_record_holds_medians_with_their_spread_for_other_readers(told):
    entry = told["entries"][0]
    assert entry["p20_s"] < entry["median_s"] < entry["p80_s"]
    assert told["schema"] == 1 and len(entry["turns"]) == 6


@pytest.mark.parametrize(
    ("place", "value", "message"),
    [
        (("schema",), 2, "has the schema 2, and this Cellerate reads 1"),
        (("entries", 0, "turns", 0, "seconds", 0), 0.0, "greater than 0"),
        (("entries", 0, "turns", 0, "seconds", 0), -1.0, "greater than 0"),
        (("entries", 0, "turns", 0, "seconds", 0), "fast", "valid number"),
        (("entries", 0, "turns", 0, "seconds"), [], "at least 1 item"),
        (("entries", 0, "turns"), [], "at least 1 item"),
        (("entries", 0, "turns", 0, "yardstick_s"), 0, "greater than 0"),
        (("entries", 0, "turns", 0, "session"), -1, "greater than or equal to 0"),
        (("entries", 0, "turns", 0, "session"), 1e300, "valid integer"),
        (("entries", 0, "items"), 0, "greater than or equal to 1"),
        (("entries", 0, "ours"), "yes", "valid boolean"),
        (("entries", 0, "title"), "x" * 3000, "at most 2000 characters"),
        (("entries", 0, "title"), None, "valid string"),
        (("machine",), [], "machine: Input should be an object"),
        (("run",), 5, "valid string"),
        (("extra",), 5, "Unexpected keyword argument"),
    ],
)
def test_record_that_does_not_fit_is_refused_with_the_place(told, tmp_path, place, value, message):
    inner = told
    for step in place[:-1]:
        inner = inner[step]
    inner[place[-1]] = value
    (tmp_path / "a.json").write_text(json.dumps(told))
    with pytest.raises(DataError, match=message) as error:
        read_record(tmp_path / "a.json")
    assert "\n" not in str(error.value) and len(str(error.value)) < 500


@pytest.mark.parametrize(
    "content", [b"", b"{", b"[1]", b"5", b"null", b"{}", b"\xff\xfe", b"[" * 100_000, b'{"schema": NaN}']
)
def test_file_that_is_no_record_is_refused(tmp_path, content):
    (tmp_path / "a.json").write_bytes(content)
    with pytest.raises(DataError, match=r"a\.json is not a record of `cellerate bench`"):
        read_record(tmp_path / "a.json")


def test_two_entries_of_one_job_are_refused(told, tmp_path):
    told["entries"].append(told["entries"][0])
    (tmp_path / "a.json").write_text(json.dumps(told))
    with pytest.raises(DataError, match="two entries of one job"):
        read_record(tmp_path / "a.json")


def test_infinite_time_is_refused(told, tmp_path):
    told["entries"][0]["turns"][0]["seconds"][0] = float("inf")
    (tmp_path / "a.json").write_text(json.dumps(told))
    with pytest.raises(DataError, match="is not a record"):
        read_record(tmp_path / "a.json")


@pytest.mark.parametrize(
    ("name", "message"), [("nowhere.json", "there is no "), ("", "is not a regular file")]
)
def test_missing_file_or_folder_is_refused(tmp_path, name, message):
    with pytest.raises(DataError, match=message):
        read_record(tmp_path / name)
