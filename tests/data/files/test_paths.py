import os
from pathlib import Path

import numpy as np
import pytest

from cellerate.data.files.paths import resolve_paths
from cellerate.errors import ConfigError, DataError


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    root = tmp_path / "root"
    for name, content in {
        "b.txt": b"b",
        "a.txt": b"a",
        "a/z.py": b"z",
        "a/deep/c.txt": b"c",
        "a-b/d.txt": b"d",
        "test/t.py": b"t",
        "lib/test/u.py": b"u",
        ".hidden.txt": b"no",
        ".git/config": b"no",
        "a/.cache/x.txt": b"no",
        "empty.txt": b"",
        "image.png": b"\x89PNG\0\0",
    }.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content)
    (root / "broken").symlink_to(root / "nowhere")
    (root / "a" / "zz").symlink_to(root)
    os.mkfifo(root / "pipe")
    return root


def names(root: Path, found: list[Path]) -> list[str]:
    return [path.relative_to(root).as_posix() for path in found]


def test_resolve_paths_of_a_folder_finds_its_text_files_sorted(tree: Path) -> None:
    expected = ["a/deep/c.txt", "a/z.py", "a-b/d.txt", "a.txt", "b.txt", "lib/test/u.py", "test/t.py"]
    assert names(tree, resolve_paths(tree)) == expected
    assert names(tree, resolve_paths(str(tree))) == expected


@pytest.mark.parametrize(
    ("include", "exclude", "expected"),
    [
        (["*.py"], [], ["a/z.py", "lib/test/u.py", "test/t.py"]),
        ("*.py", "test", ["a/z.py"]),
        (["*.py"], ["test/"], ["a/z.py"]),
        (["*.py"], ["lib/test"], ["a/z.py", "test/t.py"]),
        (["*.py", "b.*"], ["[tl]*"], ["a/z.py", "b.txt"]),
        ([], ["a", "?.txt"], ["lib/test/u.py", "test/t.py"]),
        (["a/*.txt"], [], ["a/deep/c.txt"]),
    ],
)
def test_resolve_paths_of_a_folder_keeps_to_its_patterns(
    tree: Path, include: list[str], exclude: list[str], expected: list[str]
) -> None:
    assert names(tree, resolve_paths([tree], include=include, exclude=exclude)) == expected


def test_resolve_paths_of_a_glob_finds_text_files_sorted(tree: Path) -> None:
    assert names(tree, resolve_paths(f"{tree}/*")) == ["a.txt", "b.txt"]
    assert names(tree, resolve_paths(f"{tree}/**/*.py")) == ["a/z.py", "lib/test/u.py", "test/t.py"]
    assert names(tree, resolve_paths(f"{tree}/**/*.py", exclude=["test"])) == ["a/z.py"]


def test_resolve_paths_keeps_the_order_given_and_takes_a_file_once(tree: Path) -> None:
    found = resolve_paths([tree / "b.txt", tree / "a", f"{tree}/[ab].txt", tree / "a" / ".." / "b.txt"])
    assert names(tree, found) == ["b.txt", "a/deep/c.txt", "a/z.py", "a.txt"]


def test_resolve_paths_takes_a_named_file_whatever_it_looks_like(tree: Path) -> None:
    odd = tree / "a[1].txt"
    odd.write_bytes(b"x")
    found = resolve_paths([tree / ".hidden.txt", tree / "image.png", odd])
    assert names(tree, found) == [".hidden.txt", "image.png", "a[1].txt"]


@pytest.mark.parametrize(
    ("paths", "message"),
    [
        ([], "no text file"),
        (["nowhere.txt"], r"nowhere\.txt not found"),
        (["*.nothing"], r"glob .*matches no text file"),
        (["*.png"], r"glob .*matches no text file"),
        (["void"], "folder .* has no text file"),
        (["pipe"], "not a regular file"),
        (["broken"], "not found"),
        (["x" * 300], "name too long"),
        (["nul\0.txt"], "not found"),
        (["b.txt", "nowhere"], "nowhere not found"),
    ],
)
def test_resolve_paths_that_name_nothing_is_a_data_error(
    tree: Path, monkeypatch: pytest.MonkeyPatch, paths: list[str], message: str
) -> None:
    (tree / "void" / ".hidden").mkdir(parents=True)
    (tree / "void" / "empty.txt").touch()
    monkeypatch.chdir(tree)
    with pytest.raises(DataError, match=f"(?i){message}"):
        resolve_paths(paths)


def test_resolve_paths_with_everything_left_out_names_the_patterns(tree: Path) -> None:
    with pytest.raises(DataError, match=r"include \*\.rs and exclude a, b"):
        resolve_paths(tree, include=["*.rs"], exclude=["a", "b"])
    with pytest.raises(DataError, match=r"exclude \*\.txt"):
        resolve_paths(tree / "a.txt", exclude=["*.txt"])


def test_resolve_paths_takes_utf16_for_text_and_not_for_binary(tmp_path: Path) -> None:
    (tmp_path / "marked.txt").write_bytes("text".encode("utf-16"))
    (tmp_path / "plain.txt").write_bytes("text".encode("utf-16-le"))
    (tmp_path / "zeros.bin").write_bytes(bytes(100))
    assert names(tmp_path, resolve_paths(tmp_path)) == ["marked.txt"]
    both = ["marked.txt", "plain.txt"]
    assert names(tmp_path, resolve_paths(tmp_path, encoding="utf-16-le")) == both


@pytest.mark.parametrize("wrong", [[{"a": 1}], {"a": 1}, 7, ["a.txt", None], [np.arange(3)]], ids=str)
def test_resolve_paths_of_something_else_names_its_type(wrong: object) -> None:
    with pytest.raises(
        ConfigError, match=r"paths of files, folders or globs, not a (dict|int|NoneType|ndarray)"
    ):
        resolve_paths(wrong)  # type: ignore[arg-type]


@pytest.mark.parametrize("paths", ["", ["a.txt", ""]])
def test_empty_path_is_not_taken_for_the_current_folder(paths: object) -> None:
    with pytest.raises(ConfigError, match=r"a path of the data is empty: expected the paths of files"):
        resolve_paths(paths)  # type: ignore[arg-type]
