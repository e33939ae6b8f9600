"""Finds the text files that a user's files, folders and globs stand for, with patterns to include or exclude.

It deals with hidden, empty and binary files, links that go round in circles, and the same file by two names.
Explicit paths keep their order; the files of a folder or a glob are sorted by path.
"""

from __future__ import annotations

import codecs
import fnmatch
import glob
import os
from collections.abc import Sequence
from pathlib import Path

from cellerate.data.files.decoding import is_wide
from cellerate.errors import ConfigError, DataError

Paths = str | os.PathLike[str] | Sequence[str | os.PathLike[str]]

_BINARY_PROBE_BYTES = 1024


def resolve_paths(
    paths: Paths, *, include: Sequence[str] = (), exclude: Sequence[str] = (), encoding: str = "utf-8"
) -> list[Path]:
    """Finds the text files that `paths` names, each once.

    A folder stands for the text files in it and below it, a glob (`*`, `?`, `[…]`, `**`) for the text files
    it matches. Both leave out hidden files, empty files and binary files (a zero in the first kilobyte).
    A file named by its path is always taken, unless `exclude` names it.

    Args:
        paths: One or more files, folders or globs.
        include: Patterns such as `*.py` for the files to take from a folder. Without any, all text files.
        exclude: Patterns to leave out. A pattern without `/` is compared with the name of the file and of
            every folder between it and the given folder or glob; a pattern with `/`, with the path from there.
        encoding: How the files will be read, which tells a file in UTF-16 from a binary one.

    Returns:
        The files: in the order of `paths`, and sorted within a folder or glob.

    Raises:
        ConfigError: `paths` holds something that is not a path.
        DataError: A path does not exist, or a folder, a glob or all paths together hold no text file.
    """
    given = check_paths(paths)
    wanted, unwanted = _patterns(include), _patterns(exclude)
    found: dict[Path, Path] = {}
    for one in given:
        try:
            for path in _find(Path(one), wanted, unwanted, encoding):
                found.setdefault(path.resolve(), path)
        except OSError as error:
            raise DataError(f"cannot read {error.filename or one}: {error.strerror or error}.") from error
    _require(list(found), "there is no text file to read", (), exclude)
    return list(found.values())


def check_paths(paths: Paths, expected: str = "files, folders or globs") -> list[str | os.PathLike[str]]:
    """One path or several as a list. Raises `ConfigError` if it is something else, such as a table in memory."""
    if isinstance(paths, str | os.PathLike):
        paths = [paths]
    wrong: object = paths
    if isinstance(paths, list | tuple):
        others = [one for one in paths if not isinstance(one, str | os.PathLike)]
        if not others and "" in paths:
            raise ConfigError(f"a path of the data is empty: expected the paths of {expected}.")
        if not others:
            return list(paths)
        wrong = others[0]
    raise ConfigError(
        f"the data must be the paths of {expected}, not a {type(wrong).__name__}: write it to a file, and give the "
        "file's path."
    )


def check_exist(paths: Sequence[str | os.PathLike[str]]) -> None:
    """Raise `DataError` if there is nothing to read, before anything that takes long.

    That is, a path does not exist and is not a glob, or all paths are empty files.
    """
    for path in map(Path, paths):
        if not path.exists() and not glob.has_magic(str(path)):
            raise _missing(path)
    if paths and all(path.is_file() and not path.stat().st_size for path in map(Path, paths)):
        are = "is empty" if len(paths) == 1 else "and the other files are empty"
        raise DataError(f"{paths[0]} {are}: expected a file with data.")


def _missing(path: Path) -> DataError:
    return DataError(f"{path} not found: expected an existing file, a folder or a glob.")


def _patterns(patterns: Sequence[str]) -> list[str]:
    return [patterns] if isinstance(patterns, str) else list(patterns)


def _below(path: Path, root: Path) -> tuple[str, ...]:
    return path.relative_to(root).parts


def _matches(parts: tuple[str, ...], patterns: Sequence[str]) -> bool:
    """True if a pattern matches the path, a folder on it, or (without `/`) any single name on it."""
    heads = ["/".join(parts[: i + 1]) for i in range(len(parts))]
    return any(
        fnmatch.fnmatchcase(name, pattern.rstrip("/"))
        for pattern in patterns
        for name in (heads if "/" in pattern.rstrip("/") else parts)
    )


def _find(path: Path, wanted: Sequence[str], unwanted: Sequence[str], encoding: str) -> list[Path]:
    """The files that one of the user's paths stands for."""
    if path.is_dir():
        found = [hit for hit in _walk(path, unwanted) if not wanted or _matches(_below(hit, path), wanted)]
        found = [hit for hit in found if _is_text(hit, encoding)]
        _require(found, f"folder {path} has no text file", wanted, unwanted)
        return found
    if path.is_file():
        return [] if _matches((path.name,), unwanted) else [path]
    if path.exists():
        raise DataError(f"{path} is not a regular file: expected one, because it is read twice.")
    if glob.has_magic(str(path)):
        root = _fixed_part(path)
        # Path.glob finds hidden files too, and refuses patterns that a shell accepts.
        hits = [Path(hit) for hit in glob.glob(str(path), recursive=True)]  # noqa: PTH207
        # glob follows links to folders, so it can find a file by several paths: the shortest is kept.
        hits.sort(key=lambda hit: (-len(hit.parts), hit.parts))
        once = sorted({hit.resolve(): hit for hit in hits}.values())
        found = [hit for hit in once if not _matches(_below(hit, root), unwanted) and _is_text(hit, encoding)]
        _require(found, f"glob {str(path)!r} matches no text file", (), unwanted)
        return found
    raise _missing(path)


def _walk(folder: Path, unwanted: Sequence[str]) -> list[Path]:
    def keeps(below: tuple[str, ...]) -> bool:
        return not below[-1].startswith(".") and not _matches(below, unwanted)

    def fail(error: OSError) -> None:
        raise error

    found = []
    for root, folders, names in os.walk(folder, onerror=fail):
        below = _below(Path(root), folder)
        folders[:] = [name for name in folders if keeps((*below, name))]
        found += [Path(root, name) for name in names if keeps((*below, name))]
    return sorted(found)


def _is_text(path: Path, encoding: str) -> bool:
    if not path.is_file():
        return False
    with path.open("rb") as file:
        head = file.read(_BINARY_PROBE_BYTES)
    wide = is_wide(encoding)
    # A file with UTF-16's byte-order mark is a text file, too: the error on reading it names the encoding to pass.
    if wide or head.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)):
        return bool(head) and "\0" not in head.decode(encoding if wide else "utf-16", "ignore")
    return bool(head) and b"\0" not in head


def _fixed_part(pattern: Path) -> Path:
    """The leading folders of a glob whose names hold no wildcard."""
    fixed = []
    for part in pattern.parts:
        if glob.has_magic(part):
            break
        fixed.append(part)
    return Path(*fixed)


def _require(found: Sequence[Path], message: str, include: Sequence[str], exclude: Sequence[str]) -> None:
    if found:
        return
    filters = [f"{k} {', '.join(_patterns(v))}" for k, v in (("include", include), ("exclude", exclude)) if v]
    raise DataError(f"{message}{' with ' + ' and '.join(filters) if filters else ''}.")
