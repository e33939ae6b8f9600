"""The model in other runtimes, from our own exports: ONNX Runtime, OpenVINO and LiteRT, each called as its users do.

The cases treat all three alike: a file, a number of threads, arrays in, arrays out.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import numpy as np

from cellerate.observe.bench.model import cell_file

Arrays = Mapping[str, np.ndarray]
Call = Callable[[Arrays], list[np.ndarray]]
"""Inputs by name → the outputs in the requested order."""
PRECISIONS = {"onnxruntime": ("float32", "int8"), "openvino": ("float32",), "litert": ("float32", "int8")}
"""The precisions of our exports that each runtime runs. OpenVINO's int8 models come from another tool, with data."""


def exported(folder: Path, name: str, precision: str, *, rows: int = 1, stateful: bool = False) -> Path:
    """Return the path of the model exported for a runtime, which is written if it is missing.

    Args:
        folder: The folder of the packed files and of the exports.
        name: The name of the runtime.
        precision: "float32" or "int8".
        rows: B, which LiteRT fixes in the file.
        stateful: True for a model of one step with the states as inputs and outputs.

    Raises:
        CellerateError: A package is missing, or the results of the file differ from ours.
    """
    from cellerate.tasks.exporting import export

    kind = "step" if stateful else f"{rows}-rows" if name == "litert" else "rows"
    path = folder / f"{kind}-{precision}{'.tflite' if name == 'litert' else '.onnx'}"
    if not path.exists():
        to = "litert" if name == "litert" else "onnx"
        # Written whole or not at all: another process may write the same file.
        export(
            cell_file(folder, "float32"), path, to=to, precision=precision, stateful=stateful, batch_size=rows
        )
    return path


def opened(name: str, path: Path, outputs: Sequence[str], threads: int) -> Call:
    """Open a model in a runtime on a number of threads."""
    return {"onnxruntime": _onnxruntime, "openvino": _openvino, "litert": _litert}[name](
        path, outputs, threads
    )


def _onnxruntime(path: Path, outputs: Sequence[str], threads: int) -> Call:
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.log_severity_level = 3
    options.intra_op_num_threads = threads
    session = onnxruntime.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])
    names = list(outputs)
    return lambda inputs: session.run(names, inputs)


def _openvino(path: Path, outputs: Sequence[str], threads: int) -> Call:
    import openvino

    settings = {
        "INFERENCE_NUM_THREADS": threads,
        "PERFORMANCE_HINT": "LATENCY",
        "INFERENCE_PRECISION_HINT": "f32",
    }
    request = openvino.Core().compile_model(str(path), "CPU", settings).create_infer_request()

    def run(inputs: Arrays) -> list[np.ndarray]:
        found = request.infer(dict(inputs), share_inputs=True, share_outputs=True)
        return [np.array(found[name]) for name in outputs]

    return run


def _litert(path: Path, outputs: Sequence[str], threads: int) -> Call:
    from ai_edge_litert.interpreter import Interpreter

    interpreter = Interpreter(model_content=path.read_bytes(), num_threads=threads)
    given = {each["name"]: each["index"] for each in interpreter.get_input_details()}
    places = [each["index"] for each in interpreter.get_output_details()]
    shapes: dict[str, tuple[int, ...]] = {}

    def run(inputs: Arrays) -> list[np.ndarray]:
        wanted = {name: array.shape for name, array in inputs.items()}
        if wanted != shapes:
            for name, array in inputs.items():
                interpreter.resize_tensor_input(given[name], array.shape, strict=True)
            interpreter.allocate_tensors()
            shapes.update(wanted)
        # LiteRT's LSTM continues with its last states, but each call is a new sequence.
        interpreter.reset_all_variables()
        for name, array in inputs.items():
            interpreter.set_tensor(given[name], array)
        interpreter.invoke()
        return [interpreter.get_tensor(place) for place in places]

    return run
