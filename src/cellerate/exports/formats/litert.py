"""LiteRT, which was TensorFlow Lite, tried in its interpreter."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import TYPE_CHECKING

from cellerate.exports.formats.base import ExportFormat, ExportRuntime, ExportSource, with_states

if TYPE_CHECKING:
    from cellerate.program import Program


def _programs(program: Program, stateful: bool) -> dict[str, Program]:
    return {"model": _one_step(with_states(program)) if stateful else program}


def _one_step(program: Program) -> Program:
    """The program for sequences of a single step."""
    from cellerate.program import Program

    nodes = []
    for node in program.nodes:
        shape = node.options.get("shape", ())
        if node.op == "input" and -1 in shape[1:]:
            sizes = (shape[0], *(1 if size == -1 else size for size in shape[1:]))
            node = dataclasses.replace(node, options={**node.options, "shape": sizes})
        nodes.append(node)
    return Program(tuple(nodes), program.outputs)


def _write(source: ExportSource, precision: str, path: Path) -> None:
    from cellerate.exports.litert import litert_model

    path.write_bytes(litert_model(source.program, source.rows or 1, source.metadata, precision))


def _open(source: ExportSource, path: Path, signature: str) -> ExportRuntime:
    from cellerate.exports.litert import LiteRt

    return LiteRt(path, source.programs[signature].outputs)


LITERT = ExportFormat(
    name="litert",
    suffix=".tflite",
    packages=("ai_edge_litert",),
    extra="litert",
    precisions=("float32", "float16", "int8"),
    tolerance=1e-4,
    runtime="LiteRT",
    write=_write,
    open=_open,
    fixed_rows=True,
    programs=_programs,
)
