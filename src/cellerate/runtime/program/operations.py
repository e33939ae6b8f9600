"""The operations of a packed model on arrays: on the native core where it has a kernel, on NumPy otherwise.

This module computes single operations; the `engine` decides their order and how long each result lives. All
arithmetic is in float32. Without the native core every operation runs on NumPy, so that a machine without a
compiler can run a packed model too, only slower.

The row of an operation, in `cellerate.program`, has its shapes and what it computes. Every operation computes each
row of the batch by itself. On the native core the numbers of a row do not depend on the rows beside it, to the last
bit. NumPy's matrix products, which replace the core, sum in an order that depends on the number of rows.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping

import numpy as np

from cellerate.errors import ModelError
from cellerate.kernels import dense, native
from cellerate.kernels.lstm import cpu
from cellerate.kernels.lstm.reference_activations import activation_of
from cellerate.kernels.lstm.spec import Arguments, LstmOptions, validate
from cellerate.program import AS_READ, NORMALIZERS, OPERATIONS, Arithmetic, Given, Node
from cellerate.runtime.program.over_time import States, over_time

# If a table has more rows than this share of the batch's steps, projecting it is no cheaper than each step's row.
_TABLE_SHARE = 0.5


def prepared(node: Node, transposed: dict[int, np.ndarray]) -> Node:
    """Return the node as `run` and `shapes` take it: an unembedding's table is transposed once for all calls.

    Args:
        node: The node.
        transposed: Tables transposed before, by the `id` of the table; nodes that share a table share this too.
    """
    if node.op != "unembedding":
        return node
    table = node.arrays["embeddings"]
    if id(table) not in transposed:
        transposed[id(table)] = np.ascontiguousarray(table.T)
    return dataclasses.replace(node, arrays={"kernel": transposed[id(table)]})


def result_type(node: Node, types: Mapping[str, str]) -> str:
    """The type of a node's result: "float32", "int32" (ids) or "bool" (a mask).

    Args:
        node: The node.
        types: The type of each of its inputs.

    Raises:
        ModelError: An input has a type that the operation does not read, or the operation works along the batch.
    """
    if node.options.get("axis") == 0:
        raise ModelError(
            f"{node.name}: {node.op} must work along an axis after the batch, not axis 0; rows of a batch are "
            "computed apart, so pack a model that does not mix them."
        )
    if node.op == "input":
        return str(node.options["dtype"])
    row = OPERATIONS[node.op]
    if row.gives == AS_READ and len(set(types.values())) == 1:
        return next(iter(types.values()))
    for name, found in types.items():
        expected = "bool" if name.startswith("mask") else "int32" if name == "ids" else row.reads
        if found != expected:
            raise ModelError(
                f"{node.name}: input {name!r} of {node.op} must be {expected}, not {found}; pack the model again."
            )
    return row.reads if row.gives == AS_READ else row.gives


def run(node: Node, given: Given) -> np.ndarray:
    """Runs one operation.

    Args:
        node: As `prepared` gives it; not an "input", and none of `program.RECURRENT` or their states.
        given: Its inputs, each with at least one row, in shapes that `shapes.row_shape` takes; they are not
            changed.

    Returns:
        The result, C-contiguous; it may share memory with an input.

    Raises:
        IndexError: An id is not a row of the table.
    """
    compute = OPERATIONS[node.op].run
    assert compute is not None  # noqa: S101 (the rows of the others have it)
    return np.ascontiguousarray(compute(node, given, _ARITHMETIC))


def lstm(
    node: Node, given: Given, table: np.ndarray | None = None, *, sequences: bool
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Runs an LSTM layer.

    Args:
        node: Its node.
        given: Its inputs.
        table: Embeddings (V, D) whose rows are the inputs; then `given["x"]` holds their ids (B, T), and negative
            ones count from the end.
        sequences: Whether to give all outputs or only the last.

    Returns:
        The outputs (B, T, H), or the last (B, H); h_T (B, H) and c_T (B, H).

    Raises:
        ValueError, IndexError: As `run`.
    """
    options = LstmOptions(
        **{field.name: node.options[field.name] for field in dataclasses.fields(LstmOptions)}
    )
    arrays = {**node.arrays, **given}
    here = native.why_unavailable() is None
    if table is not None:
        ids = arrays.pop("x")
        # Both ways give the same bits: they sum over the features in order, starting from the bias.
        if here and len(table) <= _TABLE_SHARE * ids.size:
            arrays |= {"ids": np.where(ids < 0, ids + len(table), ids), "embeddings": table}
        else:
            arrays["x"] = table.take(ids, axis=0)
    if not here:
        return _numpy_lstm(Arguments(**arrays), options, sequences=sequences)
    done = cpu.forward(Arguments(**arrays), options, return_sequences=sequences, keep=False)
    return done.outputs, done.h_T, done.c_T


def _numpy_lstm(
    arguments: Arguments, options: LstmOptions, *, sequences: bool
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """The layer as in `kernels.lstm.reference`, in float32 and without what backward needs."""
    shape = validate(arguments)
    x, kernel, recurrent_kernel = arguments.x, arguments.kernel, arguments.recurrent_kernel
    zeros = np.zeros((shape.batch, shape.units), np.float32)

    def step(t: int, states: States) -> States:
        h, c = states
        z = x[:, t] @ kernel + h @ recurrent_kernel
        if arguments.bias is not None:
            z += arguments.bias
        z_i, z_f, z_c, z_o = np.split(z, 4, axis=1)
        i, f, o = (activate(options.recurrent_activation, each) for each in (z_i, z_f, z_o))
        c = f * c + i * activate(options.activation, z_c)
        return o * activate(options.activation, c), c

    h0, c0 = arguments.h0, arguments.c0
    states = (zeros if h0 is None else h0, zeros if c0 is None else c0)
    outputs, (h, c) = over_time(
        step, states, shape.steps, arguments.mask, dataclasses.asdict(options), sequences=sequences
    )
    return outputs, h, c


def activate(name: str, x: np.ndarray) -> np.ndarray:
    """An activation of float32 numbers, as a node names it."""
    if name in NORMALIZERS:
        # Subtracting the maximum keeps exp from overflowing, and the sum at 1 or more.
        x = x - x.max(axis=-1, keepdims=True)
        weights = np.exp(x)
        total = weights.sum(axis=-1, keepdims=True)
        return weights / total if name == "softmax" else x - np.log(total)
    value = _gelu if name == "gelu" else activation_of(name).value
    return np.asarray(value(x), np.float32)


def _gelu(x: np.ndarray) -> np.ndarray:
    # The oracle calls math.erfc number by number, which is slow. This is the Chebyshev fit of erfc in Press et al.,
    # Numerical Recipes in C, 2nd edition, 6.2. Its relative error stays below 1.2e-7, float32's epsilon, even far
    # below 0.
    z = np.abs(x).astype(np.float64) / np.sqrt(2)
    t = 1 / (1 + z / 2)
    exponent = np.zeros_like(t)
    for factor in _ERFC:
        exponent = exponent * t + factor
    erfc = t * np.exp(exponent - z * z)
    return x * np.where(x > 0, 2 - erfc, erfc) / 2


# From the highest power of t down.
_ERFC = (
    *(0.17087277, -0.82215223, 1.48851587, -1.13520398, 0.27886807),
    *(-0.18628806, 0.09678418, 0.37409196, 1.00002368, -1.26551223),
)


def product(x: np.ndarray, kernel: np.ndarray, bias: np.ndarray | None = None) -> np.ndarray:
    """X (..., K) times a kernel (K, N), plus a bias (N,): float32 (..., N)."""
    rows = x.reshape(-1, len(kernel))
    if native.why_unavailable() is None:
        y = dense.dense(rows, kernel, bias)
    else:
        y = rows @ kernel
        if bias is not None:
            y += bias
    return y.reshape(*x.shape[:-1], -1)


_ARITHMETIC = Arithmetic(product, activate)
