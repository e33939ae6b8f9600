"""The size of each operation's result and its cost, known before anything is computed.

A packed model may come from anyone, and a few hundred bytes can ask for more numbers than any machine holds: forty
nodes are enough if each joins the one before with itself. So the `engine` first asks here, where sizes are Python
integers, which do not overflow, and only then lets `operations` take memory. Only this module says which shapes an
operation takes.

A shape here is the shape of one row, without the batch.
"""

import math
from collections.abc import Mapping, Sequence
from typing import Any

from cellerate.program import MOST_AXES, RECURRENT, Node

Shape = tuple[int, ...]

MOST_ELEMENTS = 1 << 30
"""Elements in all arrays that one row of the batch needs at once, and in its results. With what operations hold
meanwhile that is 8 GiB: the logits of 16,000 tokens with a vocabulary of 65,000, far more than LSTMs are used with."""

MOST_GROWTH = 1 << 24
"""Elements of one array of a row, for each number of the row's inputs. An id may become 65,000 logits, a vector of
16 numbers 100,000 steps of 2,000 units; no real model asks for more."""

MOST_WORK_PER_NUMBER, MOST_WORK = 1 << 36, 1 << 46
"""Multiply-adds for each number of a row's inputs, and for a whole row. Four LSTMs of 4,096 units need 2**29 a step.
The first limit takes one core about a second; the second is a row of 100,000 steps of that model."""

# Other costs, as the number of multiply-adds that take the same time: an element read or written, with what NumPy
# computes from it; a step of an LSTM; a node.
_ELEMENT, _STEP, _NODE = 1 << 7, 1 << 12, 1 << 17

_SAME = ("activation", "layer_norm", "affine", "masked", "cumsum", "flip")
_MERGES = ("add", "subtract", "multiply", "average", "maximum", "minimum", "any_mask")


def row_shape(node: Node, read: Mapping[str, Shape]) -> Shape:
    """The shape of a row of a node's result.

    Args:
        node: As `operations.prepared` gives it; not an "input".
        read: The shape of a row of each of its inputs; no size is 0.

    Returns:
        The shape; no size is 0.

    Raises:
        ValueError: The operation does not take these shapes.
    """
    shape = _row_shape(node, read)
    if len(shape) >= MOST_AXES:
        raise ValueError(f"the result has {len(shape) + 1} axes, and at most {MOST_AXES} can be")
    return shape


def work(node: Node, read: Mapping[str, Shape], result: Shape) -> int:
    """About how long a node takes for a row, as the number of native multiply-adds that take the same time."""
    elements = sum(math.prod(shape) for shape in read.values()) + math.prod(result)
    products = 0
    if node.op in ("dense", "unembedding"):
        products = math.prod(read["x"]) * result[-1]
    elif node.op in RECURRENT:
        inputs, columns = node.arrays["kernel"].shape
        units = len(node.arrays["recurrent_kernel"])
        products = read["x"][0] * ((inputs + units) * columns + columns * _ELEMENT + _STEP)
    return products + _ELEMENT * elements + _NODE


def _row_shape(node: Node, read: Mapping[str, Shape]) -> Shape:
    if node.op in _MERGES:
        return _merged([read[name] for name in map(str, range(len(read)))])
    if node.op in _SAME:
        return _same(node, read["x"], read.get("mask"))
    x = read.get("x", ())
    match node.op:
        case "embedding":
            return (*read["ids"], node.arrays["embeddings"].shape[1])
        case "dense" | "unembedding":
            inputs, outputs = node.arrays["kernel"].shape
            _check_last(x, inputs)
            return (*x[:-1], outputs)
        case "lstm" | "gru" | "simple_rnn":
            return _recurrent(node, read)
        case "lstm_state" | "rnn_state":
            return next(iter(read.values()))[-1:]
        case "ids_mask":
            return read["ids"]
        case "features_mask":
            _check_last(x)
            return x[:-1]
        case "where":
            return _chosen(read["x"], read["other"], read["mask"])
        case "flip_mask":
            _check_last(read["mask"])
            return read["mask"]
        case "mean_over_time" | "max_over_time":
            _check_last(x)
            _check_mask(x, read.get("mask"))
            return x[1:]
        case "concatenate":
            return _concatenated(node, [read[name] for name in map(str, range(len(read)))])
        case "reshape":
            return _reshaped(x, _option(node, "shape"))
        case "repeat_vector":
            return (_option(node, "n"), *x)
        case "crop":
            return _cropped(node, x)
        case "take":
            place, indices = _axis(node, x), _option(node, "indices")
            if not all(-x[place] <= index < x[place] for index in indices):
                raise ValueError(f"an index is not one of the {x[place]} along the axis")
            return (*x[:place], len(indices), *x[place + 1 :])
        case "permute":
            axes = _option(node, "axes")
            if len(axes) != len(x):
                raise ValueError(f"it orders {len(axes)} axes after the batch")
            return tuple(x[axis - 1] for axis in axes)
    raise AssertionError(node.op)


def _same(node: Node, x: Shape, mask: Shape | None) -> Shape:
    """The shape of x, if the operation takes it."""
    if node.op in ("cumsum", "flip"):
        _axis(node, x)
    elif node.op == "masked":
        _check_mask(x, mask)
    elif node.op != "activation" or node.options["activation"] in ("softmax", "log_softmax"):
        _check_last(x, *(len(array) for array in node.arrays.values()))
    return x


def _recurrent(node: Node, read: Mapping[str, Shape]) -> Shape:
    x = read["x"]
    inputs, units = len(node.arrays["kernel"]), len(node.arrays["recurrent_kernel"])
    if len(x) != 2 or x[1] != inputs:
        raise ValueError(f"x must be (B, T, {inputs})")
    _check_mask(x, read.get("mask"))
    for name in ("h0", "c0"):
        if read.get(name, (units,)) != (units,):
            raise ValueError(f"{name} must be (B, {units})")
    return (x[0], units) if node.options["return_sequences"] else (units,)


def _merged(shapes: Sequence[Shape]) -> Shape:
    """The broadcast shape: shapes with fewer axes get axes at the front, and sizes of 1 stretch to the others."""
    axes = max(map(len, shapes))
    padded = [(1,) * (axes - len(shape)) + shape for shape in shapes]
    sizes = [set(along) - {1} for along in zip(*padded, strict=True)]
    if any(len(found) > 1 for found in sizes):
        raise ValueError("the sizes of an axis are not the same, or 1")
    return tuple(found.pop() if found else 1 for found in sizes)


def _chosen(x: Shape, other: Shape, mask: Shape) -> Shape:
    shape = _merged([x, other, (*mask, 1)])
    if len(mask) != 1 or len(shape) != 2:
        raise ValueError("x and other must be (B, T, F) and mask (B, T)")
    return shape


def _concatenated(node: Node, shapes: Sequence[Shape]) -> Shape:
    place = _axis(node, shapes[0])
    if len({(len(shape), shape[:place], shape[place + 1 :]) for shape in shapes}) > 1:
        raise ValueError("the sizes of the axes that are not joined must be the same")
    return (*shapes[0][:place], sum(shape[place] for shape in shapes), *shapes[0][place + 1 :])


def _reshaped(x: Shape, shape: Shape) -> Shape:
    elements, known = math.prod(x), math.prod(size for size in shape if size != -1)
    if elements % known or (-1 not in shape and elements != known):
        raise ValueError(f"{elements} elements a row cannot become {shape}")
    return tuple(elements // known if size == -1 else size for size in shape)


def _cropped(node: Node, x: Shape) -> Shape:
    _check_last(x)
    begin, end = _option(node, "begin"), _option(node, "end")
    left = len(range(x[0])[begin:end])
    if left == 0:
        raise ValueError(f"of {x[0]} steps none is left from {begin} to {end}")
    return (left, *x[1:])


def _check_last(x: Shape, *sizes: int) -> None:
    """Refuses rows without an axis, and those whose last axis has another size: NumPy would broadcast a 1."""
    if not x or any(size != x[-1] for size in sizes):
        raise ValueError(f"the last axis must have the size {sizes[0] if sizes else 'of the features'}")


def _check_mask(x: Shape, mask: Shape | None) -> None:
    if mask is not None and (len(x) != 2 or mask != x[:1]):
        raise ValueError("x must be (B, T, F) and mask (B, T)")


def _axis(node: Node, x: Shape) -> int:
    """The axis that a node works along, among those after the batch."""
    axis: int = _option(node, "axis")
    place = axis + len(x) if axis < 0 else axis - 1
    if not 0 <= place < len(x):
        raise ValueError(f"there is no axis {axis} after the batch")
    return place


def _option(node: Node, name: str) -> Any:
    """An option, whose type `Program` has checked."""
    return node.options[name]
