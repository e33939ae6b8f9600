"""Tensors of the Open Inference Protocol V2: as JSON, or as bytes behind the JSON.

Source: https://github.com/kserve/open-inference-protocol, and Triton's extension for binary tensor data.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Annotated, Any

import msgspec
import numpy as np

from cellerate.serving.answers import RequestError, decoded

DATATYPES = {
    "BOOL": np.dtype("?"),
    "INT8": np.dtype("<i1"),
    "INT16": np.dtype("<i2"),
    "INT32": np.dtype("<i4"),
    "INT64": np.dtype("<i8"),
    "UINT8": np.dtype("<u1"),
    "UINT16": np.dtype("<u2"),
    "UINT32": np.dtype("<u4"),
    "UINT64": np.dtype("<u8"),
    "FP16": np.dtype("<f2"),
    "FP32": np.dtype("<f4"),
    "FP64": np.dtype("<f8"),
}
"""The types of tensors; those of text (BYTES) and bfloat16 (BF16) are refused."""

_MOST_AXES = 8
# The JSON values behind each kind of NumPy's types.
_NAMES = {
    "b": "true or false",
    "i": "integers",
    "u": "integers",
    "f": "fractions",
    "U": "text",
    "O": "null or an object",
}
# Parameters of Triton's extensions that this server does not have; it refuses them rather than ignore them.
_REFUSED = {
    "classification": "labels are not given here; leave it out and take the largest numbers of the output",
    "shared_memory_region": "memory is not shared here; send the numbers in the body",
}
Size = Annotated[int, msgspec.Meta(ge=0, le=2**31 - 1)]


class _WithParameters(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """A part of a request that may have parameters; clients send null for none."""

    parameters: dict[str, Any] | None = None

    def parameter(self, name: str) -> Any:
        """The value of a parameter; None if there is none."""
        return (self.parameters or {}).get(name)

    def flag(self, name: str, default: bool = False) -> bool:
        """The value of a parameter that is true or false."""
        given = self.parameter(name)
        if given is None:
            return default
        if not isinstance(given, bool):
            raise RequestError(400, f"{name} is {given!r:.40}; expected true or false.")
        return given

    def refuse(self, which: str) -> None:
        """Refuse parameters of Triton that this server cannot honour."""
        for name, meaning in _REFUSED.items():
            if self.parameter(name):
                raise RequestError(400, f"{which} has the parameter {name}: {meaning}.")


class InputTensor(_WithParameters, kw_only=True):
    """A tensor of a request."""

    name: str
    shape: Annotated[list[Size], msgspec.Meta(min_length=1, max_length=_MOST_AXES)]
    datatype: str
    data: list[Any] | None = None


class OutputTensor(_WithParameters, kw_only=True):
    """A tensor that a request asks for."""

    name: str


class InferRequest(_WithParameters, kw_only=True):
    """A request to compute."""

    inputs: Annotated[list[InputTensor], msgspec.Meta(min_length=1)]
    id: str | None = None
    outputs: list[OutputTensor] | None = None


class LoadRequest(_WithParameters, kw_only=True):
    """A request to read a model's file again."""

    def refuse_another_model(self) -> None:
        """Refuse a configuration or files in the request: a model is read from its own file only."""
        for name, value in (self.parameters or {}).items():
            if value is not None:
                raise RequestError(
                    400,
                    f"load has the parameter {name!r:.100}: a model is read from its own file only; leave it out, and "
                    "write the new file over the old one.",
                )


def read_request(body: bytes, header_length: str | None) -> tuple[InferRequest, dict[str, np.ndarray]]:
    """The request in a body, and its tensors by name.

    Args:
        body: JSON, and behind it the bytes of binary tensors.
        header_length: The length of the JSON, from `Inference-Header-Content-Length`; None if all of it is JSON.

    Raises:
        RequestError: The body is not such a request, or a tensor does not fit its description.
    """
    length = len(body)
    if header_length is not None:
        if not header_length.isascii() or not header_length.isdigit() or int(header_length) > len(body):
            raise RequestError(
                400,
                f"Inference-Header-Content-Length is {header_length!r:.40}; expected 0 to {len(body)}, the body's.",
            )
        length = int(header_length)
    asked = decoded(body[:length], InferRequest)
    place, tensors = length, {}
    # All tensors are read before anything is computed, so that a sequence reads nothing of a faulty request.
    for name in ("binary_data_output", "sequence_start", "sequence_end"):
        asked.flag(name)
    for output in asked.outputs or ():
        output.refuse(f"output {output.name!r:.100}")
        output.flag("binary_data")
    for tensor in asked.inputs:
        tensor.refuse(f"input {tensor.name!r:.100}")
        if tensor.name in tensors:
            raise RequestError(400, f"input {tensor.name!r:.100} comes twice.")
        if tensor.datatype not in DATATYPES:
            raise RequestError(
                400,
                f"input {tensor.name!r:.100} has the datatype {tensor.datatype!r:.40}; expected one of "
                f"{', '.join(DATATYPES)}.",
            )
        dtype, size = DATATYPES[tensor.datatype], tensor.parameter("binary_data_size")
        if size is None:
            tensors[tensor.name] = _of_json(tensor, dtype)
            continue
        needed = math.prod(tensor.shape) * dtype.itemsize
        if size != needed or isinstance(size, bool) or place + needed > len(body):
            raise RequestError(
                400,
                f"input {tensor.name!r:.100} of shape {tensor.shape} needs {needed} bytes; binary_data_size is "
                f"{size!r:.40}, and {len(body) - place} bytes are left.",
            )
        tensors[tensor.name] = np.frombuffer(body, dtype, math.prod(tensor.shape), place).reshape(
            tensor.shape
        )
        place += needed
    if place != len(body):
        raise RequestError(400, f"{len(body) - place} bytes are left behind the last tensor.")
    return asked, tensors


def written_response(
    asked: InferRequest, answer: Mapping[str, Any], outputs: Mapping[str, np.ndarray]
) -> tuple[list[bytes], int | None]:
    """An answer with tensors.

    Args:
        asked: The request, which decides for each output whether it comes as bytes.
        answer: The fields beside the outputs.
        outputs: The outputs by name.

    Returns:
        Its parts, and the length of the JSON if bytes follow it.
    """
    default = asked.flag("binary_data_output")
    as_bytes = {each.name: each.flag("binary_data", default) for each in asked.outputs or ()}
    described, tail = [], []
    for name, array in outputs.items():
        datatype = datatype_of(array.dtype)
        made = np.ascontiguousarray(array, DATATYPES[datatype])
        tensor: dict[str, Any] = {"name": name, "datatype": datatype, "shape": list(made.shape)}
        if as_bytes.get(name, default):
            tensor["parameters"] = {"binary_data_size": made.nbytes}
            tail.append(made.tobytes())
        else:
            tensor["data"] = made.reshape(-1).tolist()
        described.append(tensor)
    head = msgspec.json.encode({**answer, "outputs": described})
    return [head, *tail], len(head) if tail else None


def datatype_of(dtype: np.dtype) -> str:
    """The protocol's name of an output's type: results are float32, and ids are int32."""
    return "INT32" if dtype.kind in "iu" else "FP32"


def _of_json(tensor: InputTensor, dtype: np.dtype) -> np.ndarray:
    wrong = (
        f"input {tensor.name!r:.100} must have data of {math.prod(tensor.shape)} {tensor.datatype}, for its shape is "
        f"{tensor.shape}"
    )
    if tensor.data is None:
        raise RequestError(400, f"{wrong}; got none.")
    try:
        found = np.array(tensor.data)
    except ValueError as error:
        raise RequestError(400, f"{wrong}; got rows of different lengths.") from error
    kinds = {"b": "b", "i": "iu", "u": "iu", "f": "fiu"}[dtype.kind]
    if found.size == 0:
        found = found.astype(dtype)
    elif found.dtype.kind not in kinds:
        raise RequestError(400, f"{wrong}; got {_NAMES.get(found.dtype.kind, found.dtype.name)}.")
    if found.size != math.prod(tensor.shape):
        raise RequestError(400, f"{wrong}; got {found.size}.")
    if dtype.kind in "iu" and found.size and not _holds(dtype, found):
        raise RequestError(400, f"{wrong}; got numbers that {tensor.datatype} cannot hold.")
    with np.errstate(over="ignore"):
        made = found.astype(dtype).reshape(tensor.shape)
    # JSON has no infinity, so one here was a number that is too large.
    if dtype.kind == "f" and not np.isfinite(made).all():
        raise RequestError(400, f"{wrong}; got numbers that {tensor.datatype} cannot hold.")
    return made


def _holds(dtype: np.dtype, values: np.ndarray) -> bool:
    bounds = np.iinfo(dtype)
    return int(values.min()) >= bounds.min and int(values.max()) <= bounds.max


def chosen_outputs(asked: InferRequest, known: Sequence[str]) -> list[str] | None:
    """The names of the outputs that a request asks for; None for all.

    Raises:
        RequestError: The model has no such output.
    """
    if not asked.outputs:
        return None
    names = list(dict.fromkeys(each.name for each in asked.outputs))
    for name in names:
        if name not in known:
            raise RequestError(400, f"there is no output {name!r:.100}; there is {', '.join(known)}.")
    return names
