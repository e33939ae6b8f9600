"""The code that each case measures: a record names it, so that a reader sees whether it has changed since."""

import hashlib
from collections.abc import Iterable
from pathlib import Path
from typing import Any

SUFFIXES = (".py", ".cuh", ".h", ".cpp")
_KERNELS = ("csrc", "src/cellerate/kernels")
_LAYERS = (*_KERNELS, "src/cellerate/bridges", "src/cellerate/layers", "src/cellerate/keras_graph")
_TRAINING = (*_LAYERS, *(f"src/cellerate/{room}" for room in ("training", "data", "models", "tasks")))
_PACKED = (
    *_KERNELS,
    *(f"src/cellerate/{room}" for room in ("keras_graph", "compress", "runtime")),
    "benchmarks/precisions.py",
)
_ALL = ("csrc", "src/cellerate")


def _programs(*names: str) -> tuple[str, ...]:
    return tuple(f"benchmarks/{name}.py" for name in names)


_PROCESSES = ("benchmarks/processes.py", "src/cellerate/observe/bench/process.py")
_FORECASTING = tuple(
    f"forecasting/{name}"
    for name in ("backtest", "darts", "data", "neural", "ours", "peers", "race", "watch", "worker")
)

MEASURED: dict[str, tuple[str, ...]] = {
    "kernel": (*_KERNELS, *_PROCESSES, *_programs("training/kernel", "training/onednn")),
    **dict.fromkeys(
        ("step", "variants", "small", "loss", "memory"),
        (*_LAYERS, *_PROCESSES, *_programs("training/contestant", "training/race", "training/steps")),
    ),
    "loader": ("src/cellerate/data", *_PROCESSES, *_programs("training/loader")),
    "text": (*_TRAINING, *_PROCESSES, *_programs("training/text")),
    "generate": (*_PACKED, "benchmarks/generation", *_PROCESSES, *_programs("training/onednn")),
    **dict.fromkeys(
        ("inference", "latency"),
        (
            *_PACKED,
            "benchmarks/generation",
            "benchmarks/inference",
            *_PROCESSES,
            *_programs("training/onednn"),
        ),
    ),
    "quality": (*_TRAINING, *_PACKED, *_PROCESSES, *_programs("quality/packing")),
    "optimize": (*_ALL, *_PROCESSES, *_programs("quality/optimizing")),
    **dict.fromkeys(("series", "embed"), (*_TRAINING, *_PROCESSES, *_programs("cases"))),
    "compression": (*_ALL, *_PROCESSES, *_programs("quality/compression")),
    "serving": (
        *_PACKED,
        "src/cellerate/serving",
        *_PROCESSES,
        *_programs("serving/load", "serving/client", "serving/peer", "generation/model", "generation/peers"),
    ),
    "scale": (
        *(f"src/cellerate/{room}" for room in ("data", "training", "tasks")),
        *_PROCESSES,
        *_programs("training/scale"),
    ),
    "stages": (*_TRAINING, "src/cellerate/distributed", *_PROCESSES, *_programs("training/stages")),
    "plan": (*_TRAINING, "src/cellerate/distributed", *_PROCESSES, *_programs("training/planning")),
    **dict.fromkeys(
        ("forecasting", "backtest"), (*_TRAINING, *_PACKED, *_PROCESSES, *_programs(*_FORECASTING))
    ),
    "smaller": (*_PACKED, "src/cellerate/models", *_PROCESSES, *_programs("quality/compression")),
}
"""The files and folders that each case measures; a case that is not listed measures everything."""


def paths_of(case: str) -> tuple[str, ...]:
    """The paths that a case measures, relative to the project's root, in order."""
    return tuple(sorted(set(MEASURED.get(case, (*_ALL, "benchmarks")))))


def digest_of(root: Path, parts: Iterable[str] = ("src", "csrc", "benchmarks"), *, gpu: bool = True) -> str:
    """A digest of all the code below some files and folders; `gpu=False` leaves out that of the GPU."""
    digest = hashlib.sha256()
    for part in parts:
        place = root / part
        for file in [place] if place.is_file() else sorted(place.rglob("*.*")):
            name = file.relative_to(root)
            of_gpu = "cuda" in name.parts or name.parts[:2] == ("benchmarks", "gpu")
            if file.suffix in SUFFIXES and (gpu or not of_gpu):
                digest.update(f"{name}\n".encode() + file.read_bytes())
    return digest.hexdigest()


def digests(case: str, root: Path) -> dict[str, str]:
    """The digest of each path that a case measures; the GPU's code counts only for the suite that is called "gpu"."""
    return {path: digest_of(root, [path], gpu=case == "gpu")[:16] for path in paths_of(case)}


def changed(record: dict[str, Any], root: Path) -> list[str]:
    """The paths whose code has changed since a record; all paths if the record does not list any."""
    then = record.get("measured", {})
    now = digests(record["case"], root)
    return [path for path, digest in now.items() if then.get(path) != digest]
