from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from cellerate.data.text.line_files import find_line_files, line_blocks, read_lines
from cellerate.errors import ConfigError, DataError


def write(path: Path, content: bytes) -> Path:
    path.write_bytes(content)
    return path


@pytest.mark.parametrize(
    ("content", "kept", "dropped"),
    [
        (b"one\ntwo\n", ["one", "two"], ["one", "two"]),
        (b"\xef\xbb\xbfone\r\n\r\ntwo", ["one", "", "two"], ["one", "two"]),
        (b"\n\none\n\n", ["", "", "one", ""], ["one"]),
        ("a\x0cb\u2028c\x85d\x1ce\n".encode(), ["a\x0cb\u2028c\x85d\x1ce"], ["a\x0cb\u2028c\x85d\x1ce"]),
        (b" \n\t", [" ", "\t"], [" ", "\t"]),
    ],
)
def test_read_lines_of_a_text_file_splits_at_line_ends_only(
    tmp_path: Path, content: bytes, kept: list[str], dropped: list[str]
) -> None:
    path = write(tmp_path / "lines.txt", content)
    assert read_lines(path, drop_empty=False) == kept
    assert read_lines(str(path)) == dropped


def test_read_lines_of_broken_utf8_keeps_to_the_error_policy(tmp_path: Path) -> None:
    path = write(tmp_path / "lines.txt", b"ok\nb\xffd\n")
    with pytest.raises(DataError, match="byte offset 4"):
        read_lines(path)
    assert read_lines(path, errors="replace") == ["ok", "b\ufffdd"]
    with pytest.raises(ConfigError, match="errors"):
        read_lines(path, errors="ignore")  # type: ignore[arg-type]


def test_read_lines_of_nothing_is_a_data_error(tmp_path: Path) -> None:
    blank = write(tmp_path / "blank.txt", b"\r\n\n")
    assert read_lines(blank, drop_empty=False) == ["", ""]
    for path, message in (
        (blank, r"blank\.txt has no text"),
        (write(tmp_path / "empty.txt", b""), r"empty\.txt has no text"),
        (tmp_path / "missing.txt", "not found"),
        (tmp_path, "not a regular file"),
        (tmp_path / ("x" * 300), "(?i)name too long"),
    ):
        with pytest.raises(DataError, match=message):
            read_lines(path)
    with pytest.raises(DataError, match="no line"):
        read_lines(tmp_path / "empty.txt", drop_empty=False)


def parquet(path: Path, **columns: Any) -> Path:
    pq.write_table(pa.table(columns), path)
    return path


@pytest.mark.parametrize(
    "kind", [pa.string(), pa.large_string(), pa.dictionary(pa.int8(), pa.string())], ids=str
)
def test_read_lines_of_parquet_takes_the_only_column_of_strings(tmp_path: Path, kind: pa.DataType) -> None:
    values = ["one", None, "", "zwei\nZeilen", "one"]
    path = parquet(tmp_path / "data.bin", number=list(range(5)), text=pa.array(values).cast(kind))
    assert read_lines(path, drop_empty=False) == ["one", "", "", "zwei\nZeilen", "one"]
    assert read_lines(path, column="text") == ["one", "zwei\nZeilen", "one"]


def test_read_lines_of_parquet_by_name_is_not_confused_by_nested_or_dotted_columns(tmp_path: Path) -> None:
    path = parquet(tmp_path / "a.parquet", **{"a.b": ["x"], "a": ["y"], "c": [{"a": "z"}]})
    assert read_lines(path, column="a") == ["y"]
    assert read_lines(path, column="a.b") == ["x"]


@pytest.mark.parametrize(
    ("columns", "column", "message"),
    [
        ({"a": ["x"], "b": ["y"]}, None, r"more than one column of strings.*a \(string\), b \(string\)"),
        ({"a": [1]}, None, r"no column of strings.*a \(int64\)"),
        ({"a": ["x"], "n": [1]}, "b", r"no column 'b'.*a \(string\), n \(int64\)"),
        ({"a": ["x"], "n": [1]}, "n", r"no single column of strings named 'n'"),
        ({"a": pa.array([], pa.string())}, None, "has no text"),
    ],
)
def test_read_lines_of_parquet_without_a_clear_column_lists_them(
    tmp_path: Path, columns: dict[str, Any], column: str | None, message: str
) -> None:
    with pytest.raises(DataError, match=message):
        read_lines(parquet(tmp_path / "data.parquet", **columns), column=column)


def test_read_lines_of_a_damaged_or_false_parquet_file_is_a_data_error(tmp_path: Path) -> None:
    good = parquet(tmp_path / "good.parquet", a=["x" * 50] * 50).read_bytes()
    for name, content in {"text": b"just text", "half": good[: len(good) // 2], "empty": b""}.items():
        with pytest.raises(DataError, match="as a Parquet file"):
            read_lines(write(tmp_path / f"{name}.parquet", content))
    binary = parquet(tmp_path / "bytes.parquet", a=pa.array([b"\xff"]).view(pa.string()))
    with pytest.raises(DataError, match="as a Parquet file"):
        read_lines(binary)


def test_read_lines_of_text_that_begins_like_parquet_is_text(tmp_path: Path) -> None:
    assert read_lines(write(tmp_path / "a.txt", b"PAR1 is a mark\n")) == ["PAR1 is a mark"]
    assert read_lines(write(tmp_path / "b.txt", b"PAR")) == ["PAR"]


def test_read_lines_of_a_text_file_with_a_column_is_a_data_error(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="not a Parquet file"):
        read_lines(write(tmp_path / "a.txt", b"a\n"), column="text")


@pytest.mark.parametrize("suffix", [".txt", ".parquet"])
@pytest.mark.parametrize("size", [1, 3, 7, 100])
def test_blocks_of_lines_are_the_lines_in_their_order(tmp_path: Path, suffix: str, size: int) -> None:
    lines = [f"line {number}" * (number % 3) for number in range(23)] + ["end"]
    path = tmp_path / f"l{suffix}"
    if suffix == ".txt":
        path.write_text("\n".join(lines))
    else:
        pq.write_table(pa.table({"text": lines}), path, row_group_size=5)
    blocks = [block() for block in line_blocks(path, size)]
    assert [len(block) for block in blocks] == [size] * (24 // size) + [24 % size] * (24 % size > 0)
    assert [line for block in blocks for line in block] == lines == read_lines(path, drop_empty=False)


def test_files_of_lines_are_found_in_folders_and_patterns_each_once(tmp_path: Path) -> None:
    for name in ("b.txt", "_about.txt", ".d.txt", "deep/_out/e.txt", "f.json"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text("x")
    for name in ("a.parquet", "deep/c.PQ"):
        pq.write_table(pa.table({"text": ["x"] * 50}), tmp_path / name)
    inside = [tmp_path / name for name in ("a.parquet", "b.txt", "deep/c.PQ")]
    assert find_line_files([tmp_path]) == inside
    assert find_line_files([tmp_path / "*"]) == [*inside[:2], tmp_path / "f.json"]
    assert find_line_files([tmp_path / "**" / "*.PQ"]) == inside[2:]
    assert find_line_files([tmp_path / "f.json", tmp_path / "*.txt", tmp_path]) == [
        tmp_path / "f.json", inside[1], inside[0], inside[2],
    ]  # fmt: skip
    (tmp_path / "plain").mkdir()
    (tmp_path / "plain" / "part-0000").write_text("x")
    assert find_line_files([tmp_path / "plain"]) == [tmp_path / "plain" / "part-0000"]
    with pytest.raises(DataError, match="no file was given"):
        find_line_files([])
    for wrong in ("nowhere", "*.csv"):
        with pytest.raises(DataError):
            find_line_files([tmp_path / wrong])


def test_read_lines_of_json_lines_takes_a_field_and_keeps_a_row_for_each_record(tmp_path: Path) -> None:
    content = '{"a": "one", "n": 1}\n\n{"a": null}\n{"a": "two\\nlines"}'
    path = write(tmp_path / "a.ndjson", content.encode("utf-16"))
    assert read_lines(path, field="a", encoding="utf-16", drop_empty=False) == ["one", "", "two\nlines"]
    assert read_lines(path, field="a", encoding="utf-16") == ["one", "two\nlines"]
    with pytest.raises(DataError, match=r"\(field\).*'a' \(text\), 'n' \(number\)"):
        read_lines(path, encoding="utf-16")
    with pytest.raises(DataError, match="its texts are named by field"):
        read_lines(path, column="a")
    with pytest.raises(DataError, match="not a file of JSON lines"):
        read_lines(write(tmp_path / "a.txt", b"a"), field="a")


def test_read_lines_in_windows_1252_reads_it_and_an_unknown_encoding_is_refused(tmp_path: Path) -> None:
    path = write(tmp_path / "a.txt", "süß\n".encode("cp1252"))
    with pytest.raises(DataError, match=r"'süß\\n': if that is right, pass encoding='windows-1252'"):
        read_lines(path)
    assert read_lines(path, encoding="windows-1252") == ["süß"]
    with pytest.raises(ConfigError, match="encoding must be"):
        read_lines(path, encoding="none")


def test_find_line_files_of_a_folder_takes_json_lines_too(tmp_path: Path) -> None:
    for name in ("a.jsonl", "b.txt", "c.csv"):
        write(tmp_path / name, b"x")
    assert [path.name for path in find_line_files([tmp_path])] == ["a.jsonl", "b.txt"]
