"""The logits behind probabilities: Keras computes cross-entropies from them on TensorFlow.

There the tensor that a sigmoid or a softmax returns remembers what it was computed from, and `keras.ops`'s
cross-entropies read that in its place, whichever of the two it was. So an output of exactly 0 or 1 has a loss and a
gradient as large as its logit says; on JAX and torch it is clipped, and the gradient is 0.
"""

import dataclasses
from collections.abc import Sequence
from typing import Any, NamedTuple

import keras
from keras import layers
from keras.src.ops.nn import Sigmoid, Softmax

from cellerate.keras_graph.graph import functional_graph
from cellerate.keras_graph.program_nodes import Nodes
from cellerate.kernels.training.cpu import LossRule
from cellerate.program import Node

# What returns the tensor of its activation; any other layer makes a new one, which remembers nothing.
_KEEPS_LOGITS = (layers.Dense, layers.Activation, layers.Softmax, Sigmoid, Softmax)
_ACTIVATIONS = ("sigmoid", "softmax")
_CROSS_ENTROPIES = ("binary_crossentropy", "categorical_crossentropy", "sparse_categorical_crossentropy")


class OutputNodes(NamedTuple):
    """The numbers of the nodes of a model's output; -1 for none.

    Attributes:
        output: Its own.
        mask: That of its Keras mask.
        logits: That of the logits behind it.
    """

    output: int
    mask: int
    logits: int


def reads_logits(rule: LossRule) -> bool:
    """Return True if the active backend computes a loss from the logits behind an output, where there are some."""
    if keras.backend.backend() != "tensorflow":
        return False
    # Of logits, the focal loss computes a sigmoid of its own.
    return rule.name in _CROSS_ENTROPIES or (
        rule.name == "binary_focal_crossentropy" and not rule.from_logits
    )


def split_output(nodes: Nodes, tensor: Any, number: int) -> tuple[int, int] | None:
    """Make of the node of an output one of its logits and one of their activation.

    Args:
        nodes: The nodes so far; two are added where the activation is part of a layer.
        tensor: The output, of a Keras graph.
        number: The number of its node.

    Returns:
        The numbers of the output and of its logits; None where Keras finds no logits.
    """
    if keras.backend.backend() != "tensorflow":
        return None
    node = nodes.found[number]
    activation = node.options.get("activation")
    if activation not in _ACTIVATIONS or not _remembers_logits(tensor):
        return None
    if node.op == "activation":
        return number, node.inputs["x"]
    logits = len(nodes.found)
    linear = dataclasses.replace(node, options={**node.options, "activation": "linear"})
    nodes.found += [linear, Node("activation", node.name, {"x": logits}, {}, {"activation": activation})]
    return logits + 1, logits


def activations_of_logits(nodes: Sequence[Node], outputs: Sequence[OutputNodes]) -> dict[int, str]:
    """The activations that make outputs of logits, by the places of the outputs, which are those of a graph."""
    return {
        place: str(nodes[found.output].options["activation"])
        for place, found in enumerate(outputs)
        if found.logits >= 0
    }


def _remembers_logits(tensor: Any) -> bool:
    """Return True if a tensor is what an activation in float32 returned, maybe through models inside the model."""
    operation, _, place = tensor._keras_history
    inner = functional_graph(operation)
    if inner is not None:
        return _remembers_logits(inner.outputs[place])
    return isinstance(operation, _KEEPS_LOGITS) and tensor.dtype == "float32"
