"""The chains that a GPU can generate from, and their weights in the order in which the kernel reads them.

generate.cuh defines that order.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from cellerate.errors import ConfigError, ModelError
from cellerate.kernels.decoder.contract import ChainNode
from cellerate.kernels.decoder.cuda.plan import Generator, Layer
from cellerate.kernels.lstm.cuda.arrays import by_unit, in_precision
from cellerate.kernels.lstm.cuda.plan import MOST_UNITS
from cellerate.messages import argument

_WORD_BYTES = 4


def parts(nodes: Sequence[ChainNode]) -> tuple[ChainNode, list[ChainNode], ChainNode]:
    """The embedding, the LSTMs and the dense of a chain, checked. Raises `ConfigError` and `ModelError`."""
    kinds = [node.kind for node in nodes]
    if not kinds or kinds[0] != "embedding":
        raise ConfigError(
            f"chain begins with {kinds[0] if kinds else 'nothing'}; expected an embedding first."
        )
    for place, (node, kind) in enumerate(zip(nodes, kinds, strict=True)):
        where = f"chain[{place}]"
        wanted = "embedding" if place == 0 else "dense" if place == len(nodes) - 1 else "lstm"
        if kind != wanted:
            raise _refusal(f"{where} has the op {kind!r}, not {wanted!r}")
        if place > 0 and node.inputs != nodes[place - 1].outputs:
            raise ConfigError(
                f"{where} takes {node.inputs} features, but the node before it gives {nodes[place - 1].outputs}; make "
                "them equal."
            )
        if kind == "dense" and node.activation != "linear":
            raise _refusal(f"the dense {where} has the activation {node.activation}")
        if kind == "lstm" and node.outputs > MOST_UNITS:
            raise _refusal(f"the lstm {where} has {node.outputs} units; at most {MOST_UNITS} are possible")
        for name in ("kernel", "recurrent_kernel", "bias"):
            array = getattr(node, name)
            if array is not None and not np.isfinite(array).all():
                raise ModelError(
                    f"{where}: {name} holds a NaN or an infinity, so the training has diverged. Go back to an earlier "
                    "checkpoint, or train with a lower learning rate or gradient clipping."
                )
    if len(nodes) < 3:
        raise ConfigError(
            f"chain is {', '.join(kinds)}; expected an embedding, at least one lstm, and a dense."
        )
    return nodes[0], list(nodes[1:-1]), nodes[-1]


def _refusal(reason: str) -> ModelError:
    return ModelError(
        "on a GPU a model that generates must be an embedding, then LSTMs, then a linear dense layer, but "
        f"{reason}. Load this model with {argument('device', 'cpu')}."
    )


def weights(
    generator: Generator, embedding: ChainNode, lstms: Sequence[ChainNode], dense: ChainNode
) -> dict[str, np.ndarray]:
    """The arrays of weights that the kernel reads, by the names of its arguments."""
    first, layers = lstms[0], generator.layers
    table = _array(embedding.kernel) @ _array(first.kernel)
    if first.bias is not None:
        table += first.bias
    matrices = [_packed_layer(_array(first.recurrent_kernel), generator, layers[0], layers[0])]
    biases = [np.zeros(0, np.float32)]
    for place in range(1, len(lstms)):
        lstm, layer = lstms[place], layers[place]
        matrices.append(_packed_layer(_array(lstm.kernel), generator, layers[place - 1], layer))
        matrices.append(_packed_layer(_array(lstm.recurrent_kernel), generator, layer, layer))
        bias = np.zeros(4 * layer.units, np.float32) if lstm.bias is None else lstm.bias
        biases.append(by_unit(bias, layer.units).reshape(-1))
    matrices.append(_packed_head(_array(dense.kernel), generator))
    return {
        "table": in_precision(np.ascontiguousarray(by_unit(table, first.outputs)), generator.precision),
        "weights": np.concatenate(matrices),
        "biases": np.concatenate(biases),
        "head_bias": _head_bias(dense.bias, generator),
    }


def _array(array: np.ndarray | None) -> np.ndarray:
    assert array is not None  # noqa: S101 (nodes of these kinds have it)
    return array


def _packed_layer(weights: np.ndarray, generator: Generator, below: Layer, layer: Layer) -> np.ndarray:
    """A matrix of an LSTM in the order in which the warps read it, in the generator's precision, flat.

    The order is that of `kernels.lstm.cuda.plan.Packing` for the forward recurrence, (block, product, tile, lane, part,
    number), except that the layer below may have another number of units.

    Args:
        weights: (units below, 4H).
        generator: The kernel.
        below: The layer whose h it multiplies.
        layer: The layer that it belongs to.
    """
    inputs, units = generator.padded_units(below), generator.padded_units(layer)
    values = in_precision(weights, generator.precision).reshape(below.units, 4, layer.units)
    padded = np.zeros((inputs, 4, units), values.dtype)
    padded[: below.units, :, : layer.units] = values
    word = _WORD_BYTES // values.itemsize
    # product, half, quarter, number; upper, gate; block, tile, unit
    axes = padded.reshape(-1, 2, 4, word, 2, 2, generator.blocks_of(layer), generator.block_units // 4, 4)
    return axes.transpose(6, 0, 7, 8, 5, 2, 1, 4, 3).reshape(-1)


def _packed_head(kernel: np.ndarray, generator: Generator) -> np.ndarray:
    """The matrix of the logits (H, V) in the order in which the warps read it, in the generator's precision, flat.

    Ordered as in `_packed_layer`; the tiles of a block are those of its warps, one round after the other.
    """
    head = generator.head
    values = in_precision(kernel, generator.precision)
    word = _WORD_BYTES // values.itemsize
    inputs = head.pairs * head.depth_warps * 16 * word
    padded = np.zeros((inputs, head.senders, head.rounds * head.tile_warps * 16), values.dtype)
    own = 16 * head.block_tiles
    whole = np.zeros((len(values), head.senders * own), values.dtype)
    whole[:, : values.shape[1]] = values
    padded[: len(values), :, :own] = whole.reshape(len(values), head.senders, own)
    # pair, depth, in pair, half, quarter, number; block; round, tile, upper, group
    axes = padded.reshape(
        head.pairs, head.depth_warps, 2, 2, 4, word, head.senders, head.rounds, head.tile_warps, 2, 8
    )
    return axes.transpose(6, 7, 0, 2, 1, 8, 10, 4, 3, 9, 5).reshape(-1)


def _head_bias(bias: np.ndarray | None, generator: Generator) -> np.ndarray:
    """The bias of the logits, padded with zeros to whole tiles; zeros if there is none."""
    padded = np.zeros(-(-generator.outputs // 16) * 16, np.float32)
    if bias is not None:
        padded[: generator.outputs] = bias
    return padded
