"""Disks: folders that are nearly full, on a network, in memory, or gone with their container."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from pathlib import Path

from cellerate.format import size
from cellerate.machine.doctor.finding import Finding, read
from cellerate.machine.doctor.memory import Usage

TOPIC = "disk"
_FULL_BYTES = 10**9
_NEARLY_FULL_BYTES = 5 * 10**9
_NETWORK = (
    *("nfs", "nfs4", "cifs", "smb3", "smbfs", "9p", "afs", "ceph", "lustre", "glusterfs", "beegfs", "gpfs"),
    *("fuse.sshfs", "fuse.s3fs", "fuse.gcsfuse", "fuse.rclone", "fuse.glusterfs", "fuse.blobfuse2"),
)
_IN_MEMORY = ("tmpfs", "ramfs")


def check_disks(folders: Mapping[str, Path], usage: Usage, root: Path) -> Iterator[Finding]:
    """Check whether the folders that Cellerate writes to have room, and where they are.

    Args:
        folders: The path of each folder, which need not exist, by its purpose ("the current folder").
        usage: Returns the size of a file system and its free space.
        root: The root folder of the machine's files.
    """
    mounts = _mounts(read(root / "proc/mounts") or "")
    by_mount: dict[str, list[str]] = {}
    places: dict[str, Path] = {}
    for name, path in folders.items():
        place = _existing(path)
        mount = next((each for each in mounts if place.is_relative_to(each)), "/")
        by_mount.setdefault(mount, []).append(name)
        places.setdefault(mount, place)
    for mount, names in by_mount.items():
        free = usage(places[mount])[2]
        said = f"{size(free)} are free for {_joined(names)}"
        fix = (
            "free some, or choose another disk: TMPDIR for temporary files, CELLERATE_CACHE for encoded texts, "
            "-o for models"
        )
        if free < _FULL_BYTES:
            cost = "checkpoints and encoded texts do not fit, and a training ends when one cannot be written"
            yield Finding(TOPIC, "problem", f"only {said}", cost, fix)
        elif free < _NEARLY_FULL_BYTES:
            cost = "encoded texts and the checkpoints of a large model may not fit"
            yield Finding(TOPIC, "note", f"only {said}", cost, fix)
        else:
            yield Finding(TOPIC, "ok", said)
        yield from _kind(mounts.get(mount, ""), names)


def _kind(kind: str, names: list[str]) -> Iterator[Finding]:
    """Check whether the type of a file system suits its folders."""
    said = f"{_joined(names)} {'is' if len(names) == 1 else 'are'}"
    if kind in _NETWORK:
        yield Finding(
            TOPIC,
            "note",
            f"{said} on a network ({kind})",
            "data are read by random access while a model trains, each page over the network at first",
            "copy data to a local disk, and set CELLERATE_CACHE to a folder there",
        )
    elif kind in _IN_MEMORY:
        yield Finding(
            TOPIC,
            "note",
            f"{said} in memory ({kind})",
            "what is written there takes memory, and is gone after a restart",
            "choose a folder on a disk: TMPDIR, CELLERATE_CACHE, -o",
        )
    elif kind == "overlay" and "the current folder" in names:
        yield Finding(
            TOPIC,
            "note",
            "the current folder belongs to this container (overlay)",
            "models and checkpoints written here are gone when the container is removed",
            "mount a folder of the machine (`docker run -v`), and write there",
        )


def _joined(names: list[str]) -> str:
    return " and ".join(filter(None, [", ".join(names[:-1]), names[-1]]))


def _mounts(text: str) -> dict[str, str]:
    """The type of the file system at each mount point, innermost first."""
    found = {}
    for line in text.splitlines():
        _, place, kind, *_ = line.split(" ")
        # Spaces and other special characters are octal numbers; a later mount covers an earlier one.
        found[re.sub(r"\\(\d{3})", lambda code: chr(int(code[1], 8)), place)] = kind
    return dict(sorted(found.items(), key=lambda mount: -len(mount[0])))


def _existing(path: Path) -> Path:
    """The path, or its nearest parent that exists."""
    path = path.absolute()
    return next((each for each in (path, *path.parents) if each.exists()), Path("/"))
