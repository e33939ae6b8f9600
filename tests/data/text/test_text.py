import errno
import json
import os
import subprocess
import sys
import sysconfig
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest
import tokenizers
from hypothesis import given, settings, strategies as st

from cellerate import files
from cellerate.data.files import decoding
from cellerate.data.files.decoding import Errors, read_text
from cellerate.data.text import text as module
from cellerate.data.text.text import open_text
from cellerate.data.tokenizers import file_tokenizer
from cellerate.data.tokenizers.file_tokenizer import FileTokenizer
from cellerate.data.tokenizers.tokenizer import ByteTokenizer, CharacterTokenizer
from cellerate.errors import ConfigError, DataError, OutputError


def entries() -> list[Path]:
    folder = files.cache_dir() / "text"
    return sorted(folder.iterdir()) if folder.exists() else []


def joined(contents: list[bytes], errors: Errors) -> str:
    """What the text of these files is, said with Python's own decoder."""
    whole = ""
    for content in contents:
        decoded = content.decode("utf-8", errors).removeprefix("\ufeff")
        decoded = decoded.replace("\r\n", "\n").replace("\r", "\n")
        if decoded and whole and not whole.endswith("\n"):
            whole += "\n"
        whole += decoded
    return whole


# Small pieces that go wrong at chunk borders: line ends, byte-order marks, long and broken sequences.
CONTENT = st.lists(
    st.sampled_from(
        [b"\r", b"\n", b"\r\n", b"a", b"b c", b"\0", b"\x0c", b"\x80", b"\xff", b"\xf0\x9f", b"\xed\xa0\x80"]
        + [sign.encode() for sign in ("é", "\u2028", "😀", "\ufeff")],
    ),
    max_size=12,
).map(b"".join)


@settings(deadline=None, max_examples=150)
@given(
    st.lists(CONTENT, min_size=1, max_size=3),
    st.integers(1, 7),
    st.sampled_from(["strict", "replace"]),
    st.sampled_from(["characters", "bytes"]),
)
def test_open_text_equals_pythons_own_decoding(
    contents: list[bytes], chunk: int, errors: Errors, tokenizer: str
) -> None:
    with tempfile.TemporaryDirectory() as folder, pytest.MonkeyPatch.context() as patch:
        patch.setattr(decoding, "CHUNK_BYTES", chunk)
        patch.setenv("CELLERATE_CACHE", folder + "/cache")
        paths = [Path(folder, f"{i}.txt") for i in range(len(contents))]
        for path, content in zip(paths, contents, strict=True):
            path.write_bytes(content)
        try:
            expected = joined(contents, errors)
        except UnicodeDecodeError:
            broken, start = first_error(contents)
            with pytest.raises(
                DataError, match=f"{broken}\\.txt is not UTF-8.* offset {start} .*errors='replace'"
            ):
                open_text(paths, errors=errors, tokenizer=tokenizer)
            return
        if not expected:
            with pytest.raises(DataError, match="empty"):
                open_text(paths, errors=errors, tokenizer=tokenizer)
            return
        for cached in (False, True):
            opened = open_text(paths, errors=errors, tokenizer=tokenizer)
            assert opened.cached is cached
            assert opened.tokenizer.decode(opened.ids) == expected
            assert opened.ids.dtype == opened.tokenizer.dtype
            assert opened.characters == len(expected)
            assert opened.bytes == sum(map(len, contents))
            assert opened.files == len(contents)
        if tokenizer == "characters":
            assert isinstance(opened.tokenizer, CharacterTokenizer)
            assert set(opened.tokenizer.characters) == set(expected)


def first_error(contents: list[bytes]) -> tuple[int, int]:
    for index, content in enumerate(contents):
        try:
            content.decode("utf-8")
        except UnicodeDecodeError as error:
            return index, error.start
    raise AssertionError


def test_open_text_of_real_text_equals_python(shared_data: Path) -> None:
    path = shared_data / "2600-0.txt"
    opened = open_text(path)
    expected = joined([path.read_bytes()], "strict")
    assert not expected.startswith("\ufeff")
    assert opened.ids.dtype == np.uint8
    assert isinstance(opened.ids, np.memmap)
    assert not opened.ids.flags.writeable
    assert opened.tokenizer.decode(opened.ids) == expected


def test_open_text_of_the_standard_library_reads_every_source_file() -> None:
    folder = Path(sysconfig.get_paths()["stdlib"])
    exclude = ["test", "tests", "idle_test", "site-packages", "dist-packages"]
    opened = open_text(folder, include=["*.py"], exclude=exclude, errors="replace")
    paths = sorted(
        path
        for path in folder.rglob("*.py")
        if not {*path.relative_to(folder).parts} & {*exclude} and path.stat().st_size and path.is_file()
    )
    assert opened.files == len(paths) > 500
    assert opened.bytes > 8_000_000
    assert opened.tokenizer.decode(opened.ids) == joined([path.read_bytes() for path in paths], "replace")


def test_open_text_with_a_tokenizer_file_does_not_depend_on_the_chunks(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = tokenizers.Tokenizer(tokenizers.models.BPE())
    made.pre_tokenizer = tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=False)
    made.decoder = tokenizers.decoders.ByteLevel()
    trainer = tokenizers.trainers.BpeTrainer(
        vocab_size=400,
        show_progress=False,
        initial_alphabet=tokenizers.pre_tokenizers.ByteLevel.alphabet(),
    )
    text = "one line\nand äöü\n\n\nthen more\n" * 40
    made.train_from_iterator([text], trainer)
    (tmp_path / "tokenizer.json").write_text(made.to_str(), "utf-8")
    path = tmp_path / "a.txt"
    path.write_text(text, "utf-8")
    monkeypatch.setattr(file_tokenizer._PieceEncoder, "piece_characters", 40)
    monkeypatch.setattr(decoding, "CHUNK_BYTES", 7)
    opened = open_text(path, tokenizer=str(tmp_path / "tokenizer.json"))
    assert isinstance(opened.tokenizer, FileTokenizer)
    assert opened.ids.dtype == np.uint16
    assert opened.ids.tolist() == made.encode(text).ids
    assert opened.characters == len(text)
    # Two files are two texts: no token reaches from one into the other.
    (tmp_path / "b.txt").write_text("\n\nend", "utf-8")
    both = open_text([tmp_path / "b.txt", path], tokenizer=opened.tokenizer)
    assert both.ids.tolist() == [*made.encode("\n\nend\n").ids, *opened.ids.tolist()]
    assert both.characters == len(text) + 6


def test_open_text_identity_depends_on_content_tokenizer_and_errors_only(tmp_path: Path) -> None:
    path, other = tmp_path / "a.txt", tmp_path / "b.txt"
    path.write_text("some text")
    other.write_text("some text")
    first = open_text(path)
    assert not first.cached
    assert open_text(other).cached
    # The vocabulary found in the text, handed in by a resumed run, is the same data.
    again = open_text(path, tokenizer=CharacterTokenizer("some text"))
    assert again.cached
    assert again.fingerprint == first.fingerprint
    seen = {first.fingerprint}
    for opened in (
        open_text(path, tokenizer="bytes"),
        open_text(path, tokenizer=CharacterTokenizer("some text!")),
        open_text(path, errors="replace"),
        open_text([path, tmp_path / "b.txt", _write(tmp_path / "c.txt", b"x")]),
    ):
        assert not opened.cached
        seen.add(opened.fingerprint)
    assert len(seen) == 5
    path.write_text("some texT")
    assert open_text(path).fingerprint not in seen


def _write(path: Path, content: bytes) -> Path:
    path.write_bytes(content)
    return path


DAMAGE = {
    "empty": lambda data: b"",
    "short": lambda data: data[:10],
    "one-byte-missing": lambda data: data[:-1],
    "head-missing": lambda data: data[1:],
    "one-id-changed": lambda data: bytes([data[0] ^ 1]) + data[1:],
    "header-changed": lambda data: data.replace(b'"count": ', b'"count":  '),
    "header-shorter-count": lambda data: data.replace(b'"characters": 3', b'"characters": 2'),
    "bytes-appended": lambda data: data + b"\0",
    "length-too-large": lambda data: data[:-20] + b"\xff" * 8 + data[-12:],
    "another-file": lambda data: b"\x89PNG" * 100,
}


@pytest.mark.parametrize("damage", DAMAGE)
def test_open_text_with_a_damaged_cache_encodes_again(tmp_path: Path, damage: str) -> None:
    path = _write(tmp_path / "a.txt", "héllo wörld".encode() * 3)
    good = np.array(open_text(path).ids)
    (entry,) = entries()
    data = entry.read_bytes()
    assert DAMAGE[damage](data) != data
    entry.write_bytes(DAMAGE[damage](data))
    opened = open_text(path)
    assert not opened.cached
    assert np.array_equal(opened.ids, good)
    assert opened.characters == 33
    assert open_text(path).cached


def test_open_text_killed_while_encoding_leaves_no_entry(tmp_path: Path) -> None:
    path = _write(tmp_path / "a.txt", b"some text\n" * 300_000)
    program = f"""
import os, signal
from cellerate.data.text.text import open_text
def kill(done, total):
    if done > 0.8 * total:
        os.kill(os.getpid(), signal.SIGKILL)
open_text({str(path)!r}, progress=kill)
"""
    done = subprocess.run([sys.executable, "-c", program], timeout=60)
    assert done.returncode == -9
    (left,) = entries()
    assert left.name.startswith(".")
    assert left.stat().st_size > 0
    opened = open_text(path)
    assert not opened.cached
    assert opened.tokenizer.decode(opened.ids[-10:]) == "some text\n"


def test_open_text_removes_only_old_leftovers(tmp_path: Path) -> None:
    folder = files.cache_dir() / "text"
    folder.mkdir(parents=True)
    old, new, foreign = (
        _write(folder / name, b"x") for name in (".a.unfinished-1.ids", ".b.unfinished-2.ids", "note.txt")
    )
    before = time.time() - 2 * 24 * 3600
    os.utime(old, (before, before))
    os.utime(foreign, (before, before))
    open_text(_write(tmp_path / "a.txt", b"text"))
    assert not old.exists()
    assert new.exists()
    assert foreign.exists()


def test_open_text_leaves_leftovers_that_another_user_owns(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = files.cache_dir() / "text"
    folder.mkdir(parents=True)
    foreign = _write(folder / ".a.unfinished-1.ids", b"x")
    os.utime(foreign, (0, 0))
    asked = []

    def refuse(path: Path, missing_ok: bool = False) -> None:
        asked.append(path.name)
        raise PermissionError(13, "Permission denied")

    with monkeypatch.context() as patch:
        patch.setattr(Path, "unlink", refuse)
        open_text(_write(tmp_path / "a.txt", b"text"))
    assert asked == [".a.unfinished-1.ids"]
    assert foreign.exists()


def test_open_text_by_several_runs_at_once_gives_all_the_same(tmp_path: Path) -> None:
    path = _write(tmp_path / "a.txt", "größer\n".encode() * 200_000)
    with ThreadPoolExecutor(6) as pool:
        opened = list(pool.map(lambda _: open_text(path), range(6)))
    for one in opened:
        assert np.array_equal(one.ids, opened[0].ids)
    assert len(entries()) == 1
    assert open_text(path).cached


def test_open_text_with_an_unwritable_cache_says_what_to_set(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = _write(tmp_path / "a.txt", b"text")
    monkeypatch.setenv("CELLERATE_CACHE", str(path / "below-a-file"))
    with pytest.raises(OutputError, match="set CELLERATE_CACHE"):
        open_text(path)


def test_open_text_on_a_full_disk_says_so_and_leaves_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: object) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(ByteTokenizer, "stream_encoder", full)
    with pytest.raises(OutputError, match=r"disk is full.*CELLERATE_CACHE"):
        open_text(_write(tmp_path / "a.txt", b"text"), tokenizer="bytes")
    assert entries() == []


def test_open_text_of_a_file_that_changes_meanwhile_is_refused(tmp_path: Path) -> None:
    path = _write(tmp_path / "a.txt", b"text\n" * 100)

    def change(done: int, total: int) -> None:
        path.write_bytes(b"tttt\n" * 100)

    with pytest.raises(DataError, match="changed while it was read"):
        open_text(path, progress=change)
    assert entries() == []


def test_open_text_memory_is_bounded_whatever_the_size(tmp_path: Path) -> None:
    path = tmp_path / "large.txt"
    block = ("Nicht für den Prinzen — 'é' “quoted”.\r\n" * 3000).encode()
    with path.open("wb") as file:
        while file.tell() < 65_000_000:
            file.write(block)
    # VmHWM, not ru_maxrss: the latter is inherited from the process that started this one.
    program = f"""
import json, re
from pathlib import Path
from cellerate.data.text.text import open_text
def peak(): return int(re.search(r"VmHWM:\\s+(\\d+) kB", Path("/proc/self/status").read_text())[1]) * 1000
open_text({str(_write(tmp_path / "small.txt", block))!r})
before = peak()
opened = open_text({str(path)!r})
print(json.dumps([peak() - before, len(opened.ids), opened.characters]))
"""
    done = subprocess.run([sys.executable, "-c", program], timeout=120, capture_output=True, check=True)
    growth, ids, characters = json.loads(done.stdout)
    assert ids == characters > 50_000_000
    assert growth < 40_000_000


def test_open_text_progress_rises_to_the_whole(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(decoding, "CHUNK_BYTES", 10)
    path = _write(tmp_path / "a.txt", b"0123456789" * 20)
    for tokenizer in ("characters", "bytes"):
        for _ in ("encoded", "cached"):
            seen: list[tuple[int, int]] = []
            open_text(path, tokenizer=tokenizer, progress=lambda *now, seen=seen: seen.append(now))
            done = [now[0] for now in seen]
            assert done == sorted(done)
            assert seen[-1] == (200, 200)
            assert {now[1] for now in seen} == {200}
            assert len(seen) > 10


def test_open_text_with_an_unknown_character_names_file_and_place(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(decoding, "CHUNK_BYTES", 4)
    good = _write(tmp_path / "good.txt", b"aaaaaaaaaaa")
    bad = _write(tmp_path / "bad.txt", "aaaaaaaaaaé".encode())
    with pytest.raises(DataError, match=r"bad\.txt: character 'é' \(U\+00E9\) at position 10 "):
        open_text([good, bad], tokenizer=CharacterTokenizer("a\n"))
    assert entries() == []


def test_open_text_with_another_encoding_reads_it_and_tells_it_in_the_fingerprint(tmp_path: Path) -> None:
    content = "„süß“ für 5 €\r\n"
    opened = {}
    for encoding in ("utf-8", "utf-16", "windows-1252"):
        path = _write(tmp_path / f"{encoding}.txt", content.encode(encoding))
        opened[encoding] = open_text(path, encoding=encoding)
        assert opened[encoding].tokenizer.decode(opened[encoding].ids) == content.replace("\r\n", "\n")
    assert len({text.fingerprint for text in opened.values()}) == 3
    with pytest.raises(ConfigError, match="encoding must be one that Python knows"):
        open_text(path, encoding="windows-9999")


def test_open_text_of_json_lines_puts_an_empty_line_between_documents(tmp_path: Path) -> None:
    records = [
        {"id": 1, "text": "one\ntwo"},
        {"id": 2, "text": ""},
        {"id": 3, "text": "three\n"},
        {"text": None},
    ]
    path = _write(tmp_path / "a.jsonl", "".join(json.dumps(r) + "\n" for r in records).encode())
    more = _write(tmp_path / "b.txt", b"four")
    for tokenizer in ("characters", "bytes"):
        opened = open_text([path, more], tokenizer=tokenizer, field="text")
        assert opened.tokenizer.decode(opened.ids) == "one\ntwo\n\nthree\nfour"
        assert (opened.records, opened.files) == (1, 2)


def test_open_text_of_json_lines_without_a_field_names_the_fields_even_if_the_content_is_cached(
    tmp_path: Path,
) -> None:
    content = json.dumps({"id": 1, "text": "one"}).encode()
    open_text(_write(tmp_path / "a.txt", content), tokenizer="bytes")
    with pytest.raises(DataError, match=r"\(field\).*'id' \(number\), 'text' \(text\)"):
        open_text(_write(tmp_path / "a.jsonl", content), tokenizer="bytes")


@pytest.mark.parametrize("encoding", ["utf-8", "utf-16"])
def test_open_text_of_a_gutenberg_book_tells_of_the_licence_and_leaves_it_out_on_request(
    tmp_path: Path, encoding: str
) -> None:
    mark = "*** {} OF THE PROJECT GUTENBERG EBOOK BOOK ***\n"
    book = (
        "Title\n"
        + mark.format("START")
        + "\n\nIt begins.\n\nIt ends.\n\n\n"
        + mark.format("END")
        + "licence\n"
    )
    path = _write(tmp_path / "book.txt", book.encode(encoding))
    plain = _write(tmp_path / "plain.txt", "No licence.".encode(encoding))
    for cached in (False, True):
        whole = open_text([path, plain], encoding=encoding)
        stripped = open_text([path, plain], encoding=encoding, strip_gutenberg=True)
        assert (whole.licensed, stripped.licensed, stripped.cached) == (1, 1, cached)
        assert whole.tokenizer.decode(whole.ids) == book + "No licence."
        assert stripped.tokenizer.decode(stripped.ids) == "It begins.\n\nIt ends.\nNo licence."


def test_open_text_with_an_unknown_error_policy_is_a_config_error(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="'ignore'"):
        open_text(_write(tmp_path / "a.txt", b"a"), errors="ignore")  # type: ignore[arg-type]


@given(st.integers(1, 200), st.floats(0, 1, exclude_max=True))
def test_split_cuts_by_position_without_a_copy(size: int, fraction: float) -> None:
    ids = np.arange(size, dtype=np.uint8)
    opened = module.EncodedText(ids, ByteTokenizer(), size, size, 1, "", False)
    head, tail = opened.split(fraction)
    assert np.array_equal(np.concatenate([head, tail]), ids)
    assert len(tail) == int(size * fraction)
    assert np.shares_memory(head, ids)
    assert not len(tail) or np.shares_memory(tail, ids)


@pytest.mark.parametrize("fraction", [1, 1.5, -0.1, float("nan"), float("inf")])
def test_split_outside_the_range_is_a_config_error(fraction: float) -> None:
    opened = module.EncodedText(np.zeros(4, np.uint8), ByteTokenizer(), 4, 4, 1, "", False)
    with pytest.raises(ConfigError, match="validation_fraction"):
        opened.split(fraction)


def test_open_text_of_a_folder_joins_its_files(tmp_path: Path) -> None:
    for name in ("a/deep/c.txt", "a/z.py", "a-b/d.txt", "a.txt", "b.txt"):
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(path.stem)
    opened = open_text(tmp_path, include=["*.txt"])
    assert opened.tokenizer.decode(opened.ids) == "c\nd\na\nb"
    assert opened.files == 4
    assert opened.bytes == 4


@pytest.mark.parametrize("content", [b"", b"\xef\xbb\xbf"])
@pytest.mark.parametrize("tokenizer", ["characters", "bytes"])
def test_open_text_of_an_empty_file_is_a_data_error(tmp_path: Path, content: bytes, tokenizer: str) -> None:
    with pytest.raises(DataError, match=r"a\.txt is empty"):
        open_text(_write(tmp_path / "a.txt", content), tokenizer=tokenizer)
    assert entries() == []


def test_read_text_of_an_unreadable_file_is_a_data_error(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="cannot read"):
        list(read_text(tmp_path / "missing.txt"))
    with pytest.raises(DataError, match="cannot read"):
        list(read_text(tmp_path))
