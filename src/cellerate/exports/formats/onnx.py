"""ONNX, tried in ONNX Runtime, and in OpenVINO where that is installed."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from cellerate.exports.formats.base import ExportFormat, ExportRuntime, ExportSource

if TYPE_CHECKING:
    from cellerate.exports.trials import TrialBatch


def _write(source: ExportSource, precision: str, path: Path) -> None:
    from cellerate.exports.onnx import onnx_model
    from cellerate.exports.trials import sizes_of

    sizes = sizes_of(source.program, source.trials[source.signature])
    path.write_bytes(onnx_model(source.program, sizes, source.metadata, precision).SerializeToString())


def _open(source: ExportSource, path: Path, signature: str) -> ExportRuntime:
    from cellerate.exports.onnx import OnnxRuntime

    del source, signature
    return OnnxRuntime(path)


def _prove(path: Path) -> int:
    from cellerate.exports.onnx_int8 import proved_pair

    return proved_pair(path)


def _elsewhere(path: Path, trials: list[TrialBatch]) -> str:
    from cellerate.exports.openvino_trial import tried_in_openvino

    return tried_in_openvino(path, trials)


ONNX = ExportFormat(
    name="onnx",
    suffix=".onnx",
    packages=("onnx", "onnxruntime"),
    extra="onnx",
    precisions=("float32", "int8"),
    tolerance=1e-5,
    runtime="ONNX Runtime",
    write=_write,
    open=_open,
    float32_first=True,
    prove=_prove,
    elsewhere=_elsewhere,
)
