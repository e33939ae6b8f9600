"""Which code a case measures, so that a record can say what it was and a reader whether that has changed since."""

import hashlib
from collections.abc import Iterable
from pathlib import Path
from typing import Any

SUFFIXES = (".py", ".cuh", ".h", ".cpp")
_KERNELS = ("csrc", "src/cellerate/kernels")
_LAYERS = (*_KERNELS, "src/cellerate/bridges", "src/cellerate/layers", "src/cellerate/keras_graph")
_TRAINING = (*_LAYERS, *(f"src/cellerate/{room}" for room in ("training", "data", "models", "tasks")))
_PACKED = (*_KERNELS, *(f"src/cellerate/{room}" for room in ("keras_graph", "compress", "runtime")))
_ALL = ("csrc", "src/cellerate")


def _programs(*names: str) -> tuple[str, ...]:
    return tuple(f"benchmarks/{name}.py" for name in names)


_GENERATION = tuple(f"generation{part}" for part in ("", "_model", "_onnx", "_peers", "_runtimes", "_ways"))
_FORECASTING = tuple(
    f"forecasting{part}"
    for part in ("", "_backtest", "_darts", "_data", "_neural", "_ours", "_peers", "_watch", "_worker")
)
_INFERENCE = tuple(f"inference{part}" for part in ("", "_models", "_peers"))

MEASURED: dict[str, tuple[str, ...]] = {
    "kernel": (*_KERNELS, *_programs("contest", "kernel", "onednn")),
    **dict.fromkeys(
        ("step", "variants", "small", "loss", "memory"),
        (*_LAYERS, *_programs("contest", "lstm", "lstm_contestant", "lstm_race")),
    ),
    "loader": ("src/cellerate/data", *_programs("loader")),
    "text": (*_TRAINING, *_programs("contest", "training")),
    "generate": (*_PACKED, *_programs("contest", "onednn", *_GENERATION)),
    "inference": (*_PACKED, *_programs("contest", "onednn", *_GENERATION, *_INFERENCE)),
    "quality": (*_TRAINING, *_PACKED, *_programs("quality")),
    "optimize": (*_ALL, *_programs("optimizing")),
    **dict.fromkeys(("series", "embed"), (*_TRAINING, *_programs("cases"))),
    "compression": (*_ALL, *_programs("compression")),
    "serving": (
        *_PACKED,
        "src/cellerate/serving",
        *_programs("serving", "serving_client", "serving_peer", "generation_model", "generation_peers"),
    ),
    "scale": (*(f"src/cellerate/{room}" for room in ("data", "training", "tasks")), *_programs("scale")),
    "plan": (*_TRAINING, "src/cellerate/distributed", *_programs("planning")),
    **dict.fromkeys(
        ("forecasting", "backtest"), (*_TRAINING, *_PACKED, *_programs("contest", *_FORECASTING))
    ),
    "smaller": (*_PACKED, "src/cellerate/models", *_programs("compression")),
}
"""The files and folders that each case measures; a case that is not here measures everything."""


def paths_of(case: str) -> tuple[str, ...]:
    """What a case measures, relative to the project's root, in order."""
    return tuple(sorted(set(MEASURED.get(case, (*_ALL, "benchmarks")))))


def digest_of(root: Path, parts: Iterable[str] = ("src", "csrc", "benchmarks"), *, gpu: bool = True) -> str:
    """Changes with all the code below some files and folders; `gpu=False` leaves out that of the GPU."""
    digest = hashlib.sha256()
    for part in parts:
        place = root / part
        for file in [place] if place.is_file() else sorted(place.rglob("*.*")):
            name = file.relative_to(root)
            of_gpu = "cuda" in name.parts or name.name.startswith("gpu_")
            if file.suffix in SUFFIXES and (gpu or not of_gpu):
                digest.update(f"{name}\n".encode() + file.read_bytes())
    return digest.hexdigest()


def digests(case: str, root: Path) -> dict[str, str]:
    """The digest of each path that a case measures; the GPU's code counts only for the suite that is called "gpu"."""
    return {path: digest_of(root, [path], gpu=case == "gpu")[:16] for path in paths_of(case)}


def changed(record: dict[str, Any], root: Path) -> list[str]:
    """The paths whose code is no longer what a record measured; all, where it does not say what that was."""
    then = record.get("measured", {})
    now = digests(record["case"], root)
    return [path for path, digest in now.items() if then.get(path) != digest]
