"""The `.cell` file: a packed model, what it computes and what its user must know, in one file.

This module alone decides how weights are kept and how a program becomes JSON. Nothing in a file is ever executed:
it names operations of `cellerate.program`, and a program checks itself. `runtime.cell_format` reads and writes the
container, and checks its digest and its limits.

How matrices are kept; vectors are always float32:

    float32   as they are
    bfloat16  rounded to nearest even
    int8      the kernels of recurrent layers and dense as whole numbers from -127 to 127, rounded to nearest even,
              times a float32 of their column (its largest magnitude / 127); embeddings as bfloat16
    int4      the same kernels as whole numbers from -8 to 7, times a bfloat16 of 32 rows of their column (their number
              of largest magnitude / -8); embeddings as bfloat16
"""

from __future__ import annotations

import dataclasses
import functools
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from cellerate.errors import ConfigError, DataError, ModelError
from cellerate.program import PRECISIONS, Node, Program
from cellerate.runtime.cell_format import (
    BFLOAT16,
    FLOAT32,
    INT4,
    INT8,
    damaged,
    from_json,
    read_container,
    to_json,
    write_container,
)
from cellerate.runtime.narrowing import kept_bytes_of, narrow, rounded, widen
from cellerate.settings import check_choice

PUBLIC_KEY = "CELLERATE_PUBLIC_KEY"
"""The variable that names a public key in PEM; where it is set, models without its signature are refused."""

_KERNELS = ("kernel", "recurrent_kernel")
_KERNEL_TYPES: dict[str, np.dtype[Any]] = {"bfloat16": BFLOAT16, "int8": INT8, "int4": INT4}
_SCALE = ".scale"


@dataclasses.dataclass(frozen=True)
class Cell:
    """The contents of a `.cell` file.

    Attributes:
        program: What the model computes; its weights are float32 whatever the precision, and read-only.
        precision: How the matrices are kept in the file, one of `PRECISIONS`.
        header: Plain JSON: the task, its tokenizer, where the model came from. This module does not look into it.
    """

    program: Program
    precision: str
    header: Mapping[str, Any]


def check_packed(target: Path, precision: str) -> None:
    """Raise `ConfigError` unless a packed model can have this path and this precision."""
    if target.suffix != ".cell":
        raise ConfigError(f"a packed model is written to a path ending in '.cell', not {str(target)!r}.")
    check_choice("precision", precision, PRECISIONS)


def write_cell(
    path: str | os.PathLike[str],
    program: Program,
    *,
    precision: str = "float32",
    header: Mapping[str, Any] | None = None,
) -> str:
    """Write a packed model, whole or not at all, and return the digest in the file.

    Args:
        path: The file, by convention `*.cell`.
        program: What the model computes. An array that nodes share is written once.
        precision: How the matrices are kept, one of `PRECISIONS`.
        header: Plain JSON, which `read_cell` returns unchanged; None for {}.

    Raises:
        ConfigError: The precision is unknown, or the header is not plain JSON or too large.
        ModelError: The names in the program cannot be written.
        OutputError: The file could not be written.

    Example:
        >>> write_cell("book.cell", program, precision="int8", header={"task": "text"})
        >>> read_cell("book.cell").header
        {'task': 'text'}
    """
    dtypes = kept_types(program, precision)
    about = _encode_header(header)
    tensors: dict[str, np.ndarray] = {}
    names: dict[int, str] = {}
    nodes = []
    for number, node in enumerate(program.nodes):
        for name, array in node.arrays.items():
            if id(array) not in names:
                names[id(array)] = tensor = f"{number}.{name}"
                tensors[tensor], scale = narrow(array, dtypes[id(array)])
                if scale is not None:
                    tensors[tensor + _SCALE] = scale
        nodes.append(
            {
                "op": node.op,
                "name": node.name,
                "inputs": dict(node.inputs),
                "options": dict(node.options),
                "arrays": {name: names[id(array)] for name, array in node.arrays.items()},
            }
        )
    try:
        described = to_json({"nodes": nodes, "outputs": dict(program.outputs)})
        described.encode()
    except (TypeError, ValueError) as error:
        raise ModelError(f"the program cannot be written to a .cell file: {error}.") from error
    return write_container(path, {"precision": precision, "program": described, "header": about}, tensors)


def read_cell(path: str | os.PathLike[str], public_key: str | os.PathLike[str] | None = None) -> Cell:
    """Reads a packed model, and checks everything that the file says.

    The memory it takes is a small multiple of the size of the file, whatever the file claims.

    Args:
        path: A file that `write_cell` has written.
        public_key: A file with the key that must have signed it; None for the file that `PUBLIC_KEY` names, if any.

    Returns:
        The program, the precision and the header.

    Raises:
        BackendError: The package that checks signatures is not installed.
        ConfigError: `public_key` does not hold a public key.
        DataError: There is no such file, it cannot be read, it is not a `.cell` file or has another version, it
            differs, even in a single bit, from what `write_cell` writes, or it is not signed by that key.
    """
    source = Path(path)
    check = None
    key = os.environ.get(PUBLIC_KEY) if public_key is None else public_key
    # An empty path is an error of the key: taken for none, it would let unsigned models in.
    if key is not None:
        from cellerate.runtime.signing import check_signature

        check = functools.partial(check_signature, source, key)
    try:
        metadata, tensors = read_container(source, check)
        try:
            return _cell(metadata, tensors)
        except (ValueError, RecursionError) as error:
            raise damaged(source, str(error)) from error
    except MemoryError as error:
        raise DataError(
            f"{source} does not fit into memory; use a machine with more of it, or a smaller model."
        ) from error


def narrowed(program: Program, precision: str) -> Program:
    """Return a program with the weights that it has after it is written and read back.

    Args:
        program: The program.
        precision: How its matrices will be kept, one of `PRECISIONS`.

    Returns:
        The program; its arrays are float32 but hold only values of the narrower type. Nodes share the same arrays
        as before, and a second call changes nothing.

    Raises:
        ConfigError: The precision is unknown.
    """
    dtypes = kept_types(program, precision)
    wide: dict[int, np.ndarray] = {}
    for node in program.nodes:
        for array in node.arrays.values():
            if id(array) not in wide:
                wide[id(array)] = rounded(array, dtypes[id(array)])
    nodes = (
        dataclasses.replace(node, arrays={name: wide[id(array)] for name, array in node.arrays.items()})
        for node in program.nodes
    )
    return Program(tuple(nodes), program.outputs)


def kept_bytes(program: Program, precision: str) -> int:
    """The bytes of a program's weights and scales in a file of this precision; a shared array counts once.

    Raises:
        ConfigError: The precision is unknown.
    """
    dtypes = kept_types(program, precision)
    arrays = {id(array): array for node in program.nodes for array in node.arrays.values()}
    return sum(kept_bytes_of(array, dtypes[key]) for key, array in arrays.items())


def kept_types(program: Program, precision: str) -> dict[int, np.dtype[Any]]:
    """The type in which each array of a program is kept, by its `id`; for a shared array, the widest that a node needs.

    Raises:
        ConfigError: The precision is unknown.
    """
    check_choice("precision", precision, PRECISIONS)
    dtypes: dict[int, np.dtype[Any]] = {}
    for node in program.nodes:
        for name, array in node.arrays.items():
            dtype: np.dtype[Any] = FLOAT32
            if precision != "float32" and array.ndim == 2:
                dtype = _KERNEL_TYPES[precision] if name in _KERNELS else BFLOAT16
            dtypes[id(array)] = max(dtype, dtypes.get(id(array), dtype), key=lambda one: one.itemsize)
    return dtypes


def _encode_header(header: Mapping[str, Any] | None) -> str:
    advice = "it must hold dictionaries with text keys, lists, text, finite numbers, booleans and None only."
    try:
        plain = {} if header is None else dict(header)
        text = to_json(plain)
        text.encode()
        same = from_json(text) == plain
    except (TypeError, ValueError, RecursionError) as error:
        raise ConfigError(f"header is not plain JSON: {error}; {advice}") from error
    if not same:
        raise ConfigError(
            f"header would be changed by JSON, such as a tuple to a list or a key to text; {advice}"
        )
    return text


def _cell(metadata: dict[str, str], tensors: dict[str, np.ndarray]) -> Cell:
    """The cell in a container; raises `ValueError` if there is none."""
    if metadata.keys() != {"precision", "program", "header"}:
        raise ValueError("its metadata must be precision, program and header")
    precision = metadata["precision"]
    if precision not in PRECISIONS:
        raise ValueError(f"its precision must be one of {', '.join(PRECISIONS)}, it says {precision!r}")
    header = _parsed("header", metadata["header"])
    if not isinstance(header, dict):
        raise ValueError("its header is not a dictionary")
    arrays = _Arrays(tensors, precision)
    program = _program(_parsed("program", metadata["program"]), arrays)
    arrays.check_all_used(program)
    return Cell(program, precision, header)


def _parsed(name: str, text: str) -> Any:
    try:
        return from_json(text)
    except (ValueError, RecursionError) as error:
        raise ValueError(f"its {name} cannot be read: {error}") from error


class _Arrays:
    """The arrays of a file; each is made once, however many nodes name it."""

    def __init__(self, tensors: dict[str, np.ndarray], precision: str) -> None:
        self._tensors = tensors
        self._precision = precision
        self._made: dict[str, np.ndarray] = {}

    def __getitem__(self, tensor: Any) -> np.ndarray:
        if not isinstance(tensor, str) or tensor not in self._tensors:
            raise ValueError(f"it has no tensor {tensor!r}")
        if tensor not in self._made:
            values = self._tensors[tensor]
            array = widen(values, self._tensors.get(tensor + _SCALE))
            # A view of the file's bytes would keep all of them in memory.
            if array is values and self._precision != "float32":
                array = values.copy()
            array.setflags(write=False)
            self._made[tensor] = array
        return self._made[tensor]

    def check_all_used(self, program: Program) -> None:
        """Raises `ValueError` unless every tensor is used, and kept as the precision says."""
        dtypes = kept_types(program, self._precision)
        used = set()
        for name, array in self._made.items():
            dtype = self._tensors[name].dtype
            if dtype != dtypes[id(array)]:
                raise ValueError(f"the tensor {name!r} is not kept as {self._precision} files keep it")
            used |= {name, name + _SCALE} if dtype in (INT8, INT4) else {name}
        if unused := self._tensors.keys() - used:
            raise ValueError(f"no node uses the tensor {min(unused)!r}")


def _program(described: Any, arrays: _Arrays) -> Program:
    if not isinstance(described, dict) or described.keys() != {"nodes", "outputs"}:
        raise ValueError("its program must have nodes and outputs")
    nodes, outputs = described["nodes"], described["outputs"]
    if not isinstance(nodes, list) or not isinstance(outputs, dict):
        raise ValueError("its program must have a list of nodes and its outputs by name")
    return Program(tuple(_node(number, node, arrays) for number, node in enumerate(nodes)), outputs)


def _node(number: int, node: Any, arrays: _Arrays) -> Node:
    fields = {"op": str, "name": str, "inputs": dict, "options": dict, "arrays": dict}
    if not isinstance(node, dict) or node.keys() != fields.keys():
        raise ValueError(f"node {number} of its program must have {', '.join(fields)}")
    for field, kind in fields.items():
        if not isinstance(node[field], kind):
            raise ValueError(f"the {field} of node {number} of its program must be {kind.__name__}")
    return Node(
        node["op"],
        node["name"],
        node["inputs"],
        {key: arrays[tensor] for key, tensor in node["arrays"].items()},
        {key: tuple(value) if isinstance(value, list) else value for key, value in node["options"].items()},
    )
