"""Checks of the arrays that a caller gives to a packed model, and their errors."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from cellerate.errors import ConfigError, DataError
from cellerate.program import Node


def by_name(inputs: Mapping[str, Any] | np.ndarray, known: Sequence[str]) -> Mapping[str, Any]:
    """The arrays of a call by the names of the inputs.

    Raises:
        ConfigError: There is one array and several inputs, or a name is not one of the model's.
    """
    if not isinstance(inputs, Mapping):
        if len(known) > 1:
            raise ConfigError(
                f"inputs must be a dict of arrays by name, since this model has the inputs {', '.join(known)}; "
                f"got one {type(inputs).__name__}."
            )
        return {known[0]: inputs}
    for name in inputs:
        if name not in known:
            raise ConfigError(f"inputs holds {name!r}; this model's inputs are {', '.join(known)}.")
    return inputs


def as_array(value: Any) -> np.ndarray:
    """Return an array of numbers from NumPy, Arrow, DLPack or lists, without a copy where possible.

    Args:
        value: The numbers. An Arrow array, chunked or not, holds numbers, fixed-size lists, or tensors of one shape.

    Raises:
        ValueError: Rows have different lengths.
        TypeError, RuntimeError, BufferError: NumPy cannot read it: it is on a GPU, tracks gradients, or holds nulls.
    """
    if isinstance(value, np.ndarray):
        return value
    if type(value).__module__.partition(".")[0] == "pyarrow":
        return _of_arrow(value)
    if hasattr(value, "__dlpack__") and not hasattr(value, "__array__"):
        return np.from_dlpack(value)
    return np.asarray(value)


def _of_arrow(value: Any) -> np.ndarray:
    if hasattr(value, "combine_chunks"):
        value = value.combine_chunks()
    if not hasattr(value, "null_count"):
        raise TypeError("give one column, not a table")
    if hasattr(value, "to_numpy_ndarray"):
        return np.asarray(value.to_numpy_ndarray())
    shape = [len(value)]
    while hasattr(value.type, "list_size") and not value.null_count:
        shape.append(value.type.list_size)
        value = value.flatten()
    if value.null_count:
        raise TypeError("it holds nulls: fill them in")
    if hasattr(value.type, "value_type"):
        raise ValueError("lists of different lengths")
    return np.asarray(value.to_numpy(zero_copy_only=False)).reshape(shape)


def checked_array(node: Node, value: Any) -> np.ndarray:
    """Return the array of an input after checking its type and shape.

    Raises:
        DataError: The type or the shape is wrong.
    """
    expected = "ids" if node.options["dtype"] == "int32" else "numbers"
    try:
        array = as_array(value)
    except ValueError as error:
        raise DataError(
            f"input {node.name!r}: expected an array of {expected} {_text(node)}, got rows of different lengths; pad "
            "them to the same length."
        ) from error
    except (TypeError, RuntimeError, BufferError) as error:
        reason = str(error).splitlines()[0].rstrip(".")
        raise DataError(
            f"input {node.name!r}: expected an array of {expected} {_text(node)}, got a {type(value).__name__} that "
            f"NumPy cannot read ({reason:.120})."
        ) from error
    # Booleans are 0 and 1, as in Keras: an input mask is read as ids, and every id except 0 is True.
    kinds = "biu" if expected == "ids" else "bfiu"
    # bfloat16 is not one of NumPy's own types.
    if array.dtype.kind not in kinds and not (expected == "numbers" and array.dtype.name == "bfloat16"):
        fix = "int32" if expected == "ids" else "float32"
        raise DataError(
            f"input {node.name!r}: expected {'integer ids' if expected == 'ids' else 'real numbers'} {_text(node)}, "
            f"got dtype {array.dtype}; if its values are meant as {expected}, cast it to {fix}."
        )
    check_shape(node, array.shape)
    return array


def check_shape(node: Node, found: tuple[int, ...]) -> None:
    """Refuse an array whose shape does not fit an input.

    Raises:
        DataError: It has other axes or sizes, or no step or feature.
    """
    shape = node.options["shape"]
    if len(found) != len(shape) or any(
        size not in (-1, given) for size, given in zip(shape, found, strict=True)
    ):
        raise DataError(
            f"input {node.name!r}: expected shape {_text(node)}, got {found}; give one row for each example, "
            "with the sizes this model was made for."
        )
    if 0 in found[1:]:
        raise DataError(
            f"input {node.name!r}: expected shape {_text(node)} with at least one step and one feature, got "
            f"{found}; leave out examples without steps."
        )


def _text(node: Node) -> str:
    """The shape of an input in words."""
    shape = node.options["shape"]
    sizes = ["any" if size == -1 else str(size) for size in shape]
    return f"({', '.join(['B' if shape[0] == -1 else sizes[0], *sizes[1:]])})"


def smallest_tables(nodes: Iterable[Node]) -> dict[int, Node]:
    """Return the smallest table in which each node's ids are looked up, by the number of the node."""
    found: dict[int, Node] = {}
    for node in nodes:
        if node.op == "embedding":
            ids = node.inputs["ids"]
            found[ids] = min(node, found.get(ids, node), key=lambda one: len(one.arrays["embeddings"]))
    return found


def check_ids(name: str, ids: np.ndarray, table: Node | None) -> None:
    """Refuse ids that do not fit int32, or are outside the smallest table that they are looked up in.

    Raises:
        DataError: An id is out of range; the message says where.
    """
    rows = 2**31 if table is None else len(table.arrays["embeddings"])
    if ids.size == 0 or (ids.min() >= -rows and ids.max() < rows):
        return
    place = tuple(int(axis) for axis in np.argwhere((ids < -rows) | (ids >= rows))[0])
    limit = (
        "ids must fit int32"
        if table is None
        else f"the ids of {table.name} run from 0 to {rows - 1}, or from the end from -1 to {-rows}"
    )
    raise DataError(
        f"input {name!r} holds {ids[place]} at {list(place)}, but {limit}; encode with the tokenizer that the "
        "model was trained with."
    )
