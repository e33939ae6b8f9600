"""The logits behind probabilities, from which Keras computes cross-entropies on TensorFlow.

On TensorFlow, a tensor that a sigmoid or a softmax returns remembers its logits, and the cross-entropies of `keras.ops`
read those logits instead of the tensor, whichever activation it was. So the loss and the gradient of an output of
exactly 0 or 1 follow its logit; JAX and torch clip such an output, and its gradient is 0.
"""

from __future__ import annotations

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

# Layers that return the activation's own tensor; other layers return a new tensor, which remembers no logits.
_KEEPS_LOGITS = (layers.Dense, layers.Activation, layers.Softmax, Sigmoid, Softmax)
_ACTIVATIONS = ("sigmoid", "softmax")
_CROSS_ENTROPIES = ("binary_crossentropy", "categorical_crossentropy", "sparse_categorical_crossentropy")


class OutputNodes(NamedTuple):
    """The numbers of the nodes of a model's output; -1 for none.

    Attributes:
        output: The output's node.
        mask: The node of the output's Keras mask.
        logits: The node of the logits behind the output.
    """

    output: int
    mask: int
    logits: int


def reads_logits(rule: LossRule) -> bool:
    """Return True if the active backend computes a loss from the logits behind an output that has them."""
    if keras.backend.backend() != "tensorflow":
        return False
    # With from_logits=True the focal loss computes its own sigmoid.
    return rule.name in _CROSS_ENTROPIES or (
        rule.name == "binary_focal_crossentropy" and not rule.from_logits
    )


def split_output(nodes: Nodes, tensor: Any, number: int) -> tuple[int, int] | None:
    """Split the node of an output into a node of its logits and a node of their activation.

    Args:
        nodes: The nodes so far; two are added if the activation is part of a layer.
        tensor: The output, in a Keras graph.
        number: The number of its node.

    Returns:
        The numbers of the output and of its logits; None if Keras finds no logits.
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
    """The activations of the outputs that have logits, by the index of the output in the graph."""
    return {
        index: str(nodes[found.output].options["activation"])
        for index, found in enumerate(outputs)
        if found.logits >= 0
    }


def _remembers_logits(tensor: Any) -> bool:
    """Return True if a float32 activation returned the tensor, perhaps inside a nested model."""
    operation, _, index = tensor._keras_history
    inner = functional_graph(operation)
    if inner is not None:
        return _remembers_logits(inner.outputs[index])
    return isinstance(operation, _KEEPS_LOGITS) and tensor.dtype == "float32"
