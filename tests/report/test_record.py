import json
import os

import pytest

from cellerate.errors import DataError, OutputError
from cellerate.report import record
from cellerate.report.record import FILE_NAME, SCHEMA, read_run, write_run


@pytest.fixture
def changed(text_run, tmp_path):
    """A folder with the report of a run in which one place has another value."""

    def change(*place, value):
        path = write_run(text_run, tmp_path)
        content = json.loads(path.read_text())
        inner = content
        for key in place[:-1]:
            inner = inner[key]
        inner[place[-1]] = value
        path.write_text(json.dumps(content))
        return tmp_path

    return change


def test_run_that_was_written_is_read_the_same(any_run, tmp_path):
    path = write_run(any_run, tmp_path)
    assert path == tmp_path / FILE_NAME
    assert read_run(path) == read_run(tmp_path) == any_run


def test_read_of_a_report_from_before_there_was_a_test_part(text_run, tmp_path):
    path = write_run(text_run, tmp_path)
    content = json.loads(path.read_text())
    del content["metric"]["test_source"], content["verdict"]["tested"], content["verdict"]["rejected"]
    for one in content["candidates"]:
        del one["control"], one["control_loss"]
    path.write_text(json.dumps(content))
    assert content["schema"] == 1
    assert read_run(path) == text_run


def test_loss_that_the_gate_takes_is_the_worse_of_both(tested_run):
    losses = {one.id: one.worst_loss for one in tested_run.candidates}
    assert losses["original"] == 0.0
    assert losses["pruned-75-int8"] == 0.022
    assert losses["int8"] == 0.0018
    assert [one.id for one in tested_run.candidates if one.is_control] == ["control-300-4e-03"]


def test_read_of_a_folder_without_a_report_says_what_to_give(tmp_path):
    with pytest.raises(
        DataError, match=r"there is no .*report\.json: give the folder that `cellerate optimize`"
    ):
        read_run(tmp_path)


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"{",
        b"[]",
        b"null",
        b"7",
        b"{}",
        b'"text"',
        b"\xff\xfe\x00",
        b"[" * 100_000,
        b'{"schema": ' + b"9" * 10_000 + b"}",
        b"PK\x03\x04 a zip file",
    ],
    ids=lambda content: repr(content[:12]),
)
def test_read_of_a_damaged_report_is_one_line_of_an_error(tmp_path, content):
    (tmp_path / FILE_NAME).write_bytes(content)
    with pytest.raises(DataError, match="is damaged or no report of `cellerate optimize`") as raised:
        read_run(tmp_path)
    assert "\n" not in str(raised.value)
    assert "has no attribute" not in str(raised.value)
    assert len(str(raised.value)) < 500


@pytest.mark.parametrize("share", [0.1, 0.5, 0.99])
def test_read_of_a_cut_report_is_an_error(text_run, tmp_path, share):
    path = write_run(text_run, tmp_path)
    content = path.read_bytes()
    path.write_bytes(content[: int(len(content) * share)])
    with pytest.raises(DataError, match="is damaged"):
        read_run(tmp_path)


@pytest.mark.parametrize(
    ("place", "value"),
    [
        (("status",), "great"),
        (("seconds",), "long"),
        (("seconds",), float("nan")),
        (("seconds",), float("inf")),
        (("candidates",), {"0": 1}),
        (("candidates", 0, "parameters"), 1.5),
        (("candidates", 0, "parameters"), 10**400),
        (("candidates", 0, "file_bytes"), -1),
        (("candidates", 0, "passes_gate"), 7),
        (("passes", 0, "status"), "\x1b[2J"),
        (("passes", 0, "\x1b[2Junknown\n"), 1),
        (("verdict", "rows", 0, "before"), None),
        (("environment", 0), ["only one"]),
    ],
)
def test_read_of_a_wrong_value_says_where_it_is(changed, place, value):
    folder = changed(*place, value=value)
    with pytest.raises(DataError, match=str(place[0])) as raised:
        read_run(folder)
    assert str(raised.value).isprintable()


def test_read_of_a_newer_report_says_to_upgrade(changed):
    folder = changed("schema", value=SCHEMA + 1)
    with pytest.raises(
        DataError, match=f"newer Cellerate \\(schema {SCHEMA + 1}; this one reads {SCHEMA}\\)"
    ) as raised:
        read_run(folder)
    assert "damaged" not in str(raised.value)


def test_read_of_a_huge_file_is_refused_before_all_of_it_is_read(tmp_path):
    with (tmp_path / FILE_NAME).open("wb") as file:
        file.truncate(1 << 40)
    with pytest.raises(DataError, match="bytes: give the folder that"):
        read_run(tmp_path)


def test_read_of_a_file_that_hides_its_size_is_refused_as_soon_as_it_is_too_large(monkeypatch):
    # The system says that this has 0 bytes; what it holds is found by reading alone.
    path = "/proc/self/status"
    if not os.path.exists(path) or os.stat(path).st_size:  # noqa: PTH110, PTH116
        pytest.skip("needs a file whose size the system does not say")
    monkeypatch.setattr(record, "_LARGEST", 64)
    with pytest.raises(DataError, match="has more than 64 bytes: give the folder that"):
        read_run(path)


def test_read_of_a_path_that_is_too_long_is_one_line_of_an_error():
    with pytest.raises(DataError, match=r"cannot be read: File name too long\.$"):
        read_run("x" * 5000)


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="needs named pipes")
def test_read_of_a_pipe_is_refused_and_waits_for_nobody(tmp_path):
    os.mkfifo(tmp_path / FILE_NAME)
    with pytest.raises(DataError, match=r"report\.json is not a regular file: give the folder that"):
        read_run(tmp_path)


@pytest.mark.skipif(not os.path.exists("/dev/zero"), reason="needs a device")  # noqa: PTH110
def test_read_of_a_device_is_refused(tmp_path):
    (tmp_path / FILE_NAME).symlink_to("/dev/zero")
    with pytest.raises(DataError, match=r"report\.json is not a regular file"):
        read_run(tmp_path)


def test_write_over_a_folder_is_an_output_error(text_run, tmp_path):
    (tmp_path / FILE_NAME).mkdir()
    with pytest.raises(OutputError):
        write_run(text_run, tmp_path)
