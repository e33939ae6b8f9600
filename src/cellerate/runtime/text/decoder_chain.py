"""Finding a next-token chain in a packed model: ids in, one layer after another, logits out.

The native core draws from such a chain in one call, and a GPU runs nothing else. Any other program is refused here,
with the reason; `program_steps` runs it on the CPU if its layers only look back. A model of one-hot vectors as wide as
its logits is such a chain, too: a product with a one-hot vector is a row of the kernel.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from cellerate.errors import ModelError
from cellerate.program import Node, Program

_IN_WORDS = {"gru": "a GRU", "simple_rnn": "a SimpleRNN", "windows": "a convolution over time"}
# The operations that may stand between the embedding and the logits.
_LINKS = {"lstm", "layer_norm", "affine", "dense", "unembedding", "activation"}

# Weights that layers share are packed once for each layer. The packed arrays may be this many times as large as
# the weights, plus this many bytes.
_MOST_TIMES, _MOST_SHARED_BYTES = 16, 64 << 20


def chain_of(program: Program) -> list[dict[str, Any]]:
    """The layers of a next-token model, for `kernels.decoder.cpu.StepModel`.

    A softmax at the end is left out: the logits before it give the same distribution. Where an Embedding masks
    id 0, that id changes neither the state nor the logits. Where the model reads one-hot vectors, ids take their place.

    Args:
        program: What the model computes.

    Returns:
        One dictionary a layer: "op", and its weights and options by name. The embedding comes first.

    Raises:
        ModelError: The program is not such a chain; the message says why.
    """
    check_one_of_each(program)
    nodes, number = _nodes(program)
    one_hot = program.nodes[number].options["dtype"] == "float32"
    if not one_hot and (not nodes or nodes[0].op != "embedding"):
        raise refusal("it does not start with an Embedding of ids")
    if any(node.op == "embedding" for node in nodes[1:]):
        raise refusal("an Embedding reads what a layer computes")
    masks_zero = _masks_zero(program, nodes, number)
    # A linear activation only casts: `models.text` ends with one.
    nodes = [n for n in nodes if (n.op, n.options.get("activation")) != ("activation", "linear")]
    chain = [link for place, node in enumerate(nodes) for link in _links(node, last=place == len(nodes) - 1)]
    if not any(link["op"] == "lstm" for link in chain):
        raise refusal("it has no LSTM, so there is nothing to step")
    if one_hot:
        chain = _looked_up(chain, program.nodes[number].options["shape"])
    _check_shared(chain)
    chain[0]["masks_zero"] = masks_zero
    return chain


def widths(chain: Sequence[Mapping[str, Any]]) -> tuple[int, int]:
    """The number of ids that a chain of `chain_of` reads, and of the logits that it gives."""
    last = next(link for link in reversed(chain) if link["op"] in ("lstm", "dense"))
    matrix = last["kernel"] if last["op"] == "dense" else last["recurrent_kernel"].T
    return len(chain[0].get("embeddings", ())), matrix.shape[1]


def check_one_of_each(program: Program) -> None:
    """Raise `ModelError` unless a program has one input and one output."""
    if len(program.inputs) != 1 or len(program.outputs) != 1:
        raise refusal(
            f"it has {len(program.inputs)} inputs and {len(program.outputs)} outputs, a next-token model one of each"
        )


def _nodes(program: Program) -> tuple[list[Node], int]:
    """The nodes from the input, which is left out, to the output, and the number of the input."""
    number = next(iter(program.outputs.values()))
    nodes: list[Node] = []
    while program.nodes[number].op != "input":
        node = program.nodes[number]
        name = "ids" if node.op == "embedding" else "x"
        skipped = node.op == "masked" and _counts_all(program, node, node.inputs["x"])
        if node.inputs.keys() - {"mask"} != {name} or not (skipped or node.op in _LINKS | {"embedding"}):
            reads = f", which reads {' and '.join(node.inputs)}" if len(node.inputs) > 1 else ""
            raise refusal(f"{node.name} is {in_words(node)}{reads}")
        if not skipped:
            nodes.insert(0, node)
        number = node.inputs[name]
    return nodes, number


def _counts_all(program: Program, node: Node, source: int) -> bool:
    """True if a node's mask is a Masking of one-hot vectors, which masks none: each vector has both a 0 and a 1."""
    mask = program.nodes[node.inputs["mask"]]
    return mask.op == "features_mask" and mask.inputs["x"] == source and program.nodes[source].op == "input"


def _looked_up(chain: list[dict[str, Any]], shape: Any) -> list[dict[str, Any]]:
    """A chain for one-hot vectors, made to read ids: an embedding before it gives its first layer the same products.

    Args:
        chain: The layers; the last gives the logits.
        shape: The shape of the input.

    Raises:
        ModelError: The input is not one of one-hot vectors as wide as the logits, or no kernel reads it.
    """
    first, *others = chain
    _, width = widths(chain)
    if len(shape) != 3 or shape[2] != width or width < 2:
        raise refusal(
            f"it does not start with an Embedding of ids, and its input of the shape {shape} has no one-hot vectors as "
            f"wide as its {width} outputs"
        )
    if first["op"] not in ("lstm", "dense") or len(first["kernel"]) != width:
        raise refusal(
            f"the first to read its one-hot vectors is {first['op']}, not an LSTM or a Dense of {width} inputs"
        )
    kernel = first["kernel"]
    if first["op"] == "dense" and first["activation"] == "linear":
        bias = np.float32(0) if first["bias"] is None else first["bias"]
        return [{"op": "embedding", "embeddings": np.ascontiguousarray(kernel + bias)}, *others]
    # Both are exact. The smaller one takes less time and memory.
    if width <= kernel.shape[1]:
        return [{"op": "embedding", "embeddings": np.eye(width, dtype=np.float32)}, *chain]
    identity = np.eye(kernel.shape[1], dtype=np.float32)
    return [{"op": "embedding", "embeddings": kernel}, first | {"kernel": identity}, *others]


def _check_shared(chain: list[dict[str, Any]]) -> None:
    """Refuses weights that many layers share, if packing them for each layer would take unbounded memory."""
    arrays = [value for link in chain for value in link.values() if isinstance(value, np.ndarray)]
    kept = sum({id(array): array.nbytes for array in arrays}.values())
    if sum(array.nbytes for array in arrays) > _MOST_TIMES * kept + _MOST_SHARED_BYTES:
        raise refusal(f"its {len(chain)} layers share their weights, and each needs its own here")


def _masks_zero(program: Program, nodes: list[Node], ids: int) -> bool:
    """True if the LSTMs skip id 0; either all of them must, or none."""
    lstms = [node for node in nodes if node.op == "lstm"]
    masked = [node for node in lstms if "mask" in node.inputs and not _counts_all(program, node, ids)]
    for node in masked:
        mask = program.nodes[node.inputs["mask"]]
        if mask.op != "ids_mask" or mask.inputs["ids"] != ids:
            raise refusal(f"{node.name} is masked by something else than its ids being 0")
        if node.options["masked_output"] == "zero":
            raise refusal(f"{node.name} gives zeros at masked steps")
    if masked and len(masked) < len(lstms):
        raise refusal(f"{masked[0].name} is masked and another LSTM is not")
    return bool(masked)


def _links(node: Node, *, last: bool) -> list[dict[str, Any]]:
    """The links of a chain that a node becomes; none if it does nothing there."""
    arrays, options = dict(node.arrays), dict(node.options)
    match node.op:
        case "embedding":
            return [{"op": "embedding", **arrays}]
        case "lstm":
            if options["go_backwards"]:
                raise refusal(f"{node.name} walks backwards, from a future that is not written yet")
            names = ("activation", "recurrent_activation")
            return [{"op": "lstm", "bias": None, **arrays, **{name: options[name] for name in names}}]
        case "layer_norm":
            return [
                {"op": "layer_norm", "gamma": None, "beta": None, **arrays, "epsilon": options["epsilon"]}
            ]
        case "affine":
            return [{"op": "affine", **arrays}]
        case "unembedding":
            if options["soft_cap"] is not None:
                raise refusal(f"{node.name} caps its logits")
            kernel = np.ascontiguousarray(arrays["embeddings"].T)
            return [{"op": "dense", "kernel": kernel, "bias": None, "activation": "linear"}]
    activation = options["activation"]
    if last and activation in ("softmax", "log_softmax"):
        activation = "linear"
    if node.op == "dense":
        if activation in ("softmax", "log_softmax"):
            raise refusal(f"{node.name} is a softmax that is not the end")
        return [{"op": "dense", "bias": None, **arrays, "activation": activation}]
    if activation != "linear":
        raise refusal(f"{node.name} is an activation layer, {activation}, that is not the end")
    return []


def in_words(node: Node) -> str:
    """The operation of a node, for messages."""
    return _IN_WORDS.get(node.op, node.op)


def refusal(reason: str) -> ModelError:
    """The error for a model that cannot be run a step at a time."""
    return ModelError(
        f"this model cannot be run a step at a time: {reason}. It can still `predict` whole sequences."
    )
