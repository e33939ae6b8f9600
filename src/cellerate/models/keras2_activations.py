"""`hard_sigmoid` in files of Keras 2: clip(0.2 x + 0.5) there, and clip(x / 6 + 0.5) in Keras 3.

Both are the same where Keras 3 gets an x that is 1.2 times as large, so the weights before it are scaled. It was the
default of recurrent layers until TensorFlow 2, so most old files have it.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import keras
import numpy as np
from keras import layers

from cellerate.errors import ModelError

SCALED = "_as_in_keras_2"
_SCALE = 1.2
# For each class of cells: its number of gates, and those that each activation is for. An LSTM applies `activation` to
# its state, too, which no weights scale.
_CELLS: dict[str, tuple[int, dict[str, list[int]]]] = {
    "LSTMCell": (4, {"recurrent_activation": [0, 1, 3]}),
    "ConvLSTMCell": (4, {"recurrent_activation": [0, 1, 3]}),
    "GRUCell": (3, {"recurrent_activation": [0, 1], "activation": [2]}),
    "SimpleRNNCell": (1, {"activation": [0]}),
}
# For each class of other layers: the kernel before its activation.
_KERNELS = {
    **dict.fromkeys(("Dense", "EinsumDense", "BaseConv", "BaseConvTranspose", "BaseDepthwiseConv"), "kernel"),
    "BaseSeparableConv": "pointwise_kernel",
}


def scale_before_activations(nodes: list[dict[str, Any]]) -> bool:
    """Put a `Rescaling` before each `Activation("hard_sigmoid")` of a model, and return whether there was one.

    Args:
        nodes: The descriptions of the model's layers, as Keras 2 writes them. They are changed.
    """
    found = [node for node in nodes if _is_hard(node)]
    for node in found:
        config = node["config"]
        name = f"{config['name']}{SCALED}"
        before = node | {"class_name": "Rescaling", "name": name}
        before["config"] = {
            "name": name,
            "scale": _SCALE,
            "offset": 0.0,
            "dtype": config.get("dtype", "float32"),
        }
        if "batch_input_shape" in config:
            before["config"]["batch_input_shape"] = config.pop("batch_input_shape")
        if "inbound_nodes" in node:
            node["inbound_nodes"] = [[[name, call, 0, {}]] for call in range(len(node["inbound_nodes"]))]
        nodes.insert(next(place for place, one in enumerate(nodes) if one is node), before)
    return bool(found)


def scale_weights(source: Path, model: keras.Model) -> None:
    """Scale the weights before each `hard_sigmoid` in a model that was read from a file of Keras 2.

    Args:
        source: The file, for messages.
        model: The model. Each `Activation` in it is scaled already.

    Raises:
        ModelError: No scale of the weights of a layer gives the numbers of Keras 2.
    """
    found = {id(layer): layer for layer in model._flatten_layers()}
    owners = {id(layer.cell): layer.name for layer in found.values() if isinstance(layer, layers.RNN)}
    for layer in found.values():
        hard = [
            name
            for name in ("activation", "recurrent_activation")
            if getattr(layer, name, None) is keras.activations.hard_sigmoid
        ]
        # The cell of a recurrent layer is a layer of its own.
        if hard and not isinstance(layer, (layers.RNN, layers.Activation)) and not _scaled(layer, hard):
            raise ModelError(
                f"{source} has the layer {owners.get(id(layer), layer.name)!r} "
                f"({type(layer).__name__}) with {hard[0]}='hard_sigmoid', "
                "which was clip(0.2 x + 0.5) in Keras 2 and is clip(x / 6 + 0.5) in Keras 3. Its weights cannot "
                "make up for that. Train the model again in Keras 3, or with another activation."
            )


def _is_hard(node: dict[str, Any]) -> bool:
    """True for an `Activation("hard_sigmoid")`; one in a `TimeDistributed` is taken out, as it computes the same."""
    config = node["config"]
    if node["class_name"] == "TimeDistributed" and _is_hard(config["layer"]):
        node["class_name"] = "Activation"
        node["config"] = config["layer"]["config"] | {
            key: config[key] for key in ("name", "batch_input_shape") if key in config
        }
        return True
    activation = config.get("activation")
    if isinstance(activation, dict):
        activation = activation.get("config")
    return bool(node["class_name"] == "Activation" and activation == "hard_sigmoid")


def _scaled(layer: keras.Layer, hard: list[str]) -> bool:
    """Scales the weights of a layer, and returns False if that would not do."""
    for kind in (base.__name__ for base in type(layer).__mro__):
        if kind in _KERNELS:
            _multiply([getattr(layer, _KERNELS[kind]), layer.bias], _SCALE)
            return True
        if kind in _CELLS:
            count, gates = _CELLS[kind]
            chosen = [gate for name in hard for gate in gates.get(name, [])]
            factors = np.where(np.isin(np.arange(count), chosen), _SCALE, 1.0)
            columns = np.repeat(factors, layer.kernel.shape[-1] // count)
            _multiply([layer.kernel, layer.recurrent_kernel, layer.bias], columns)
            return gates.keys() >= set(hard)
    return False


def _multiply(variables: list[Any], factors: Any) -> None:
    for variable in variables:
        if variable is not None:
            # In float64, so that weights of 16 bits are rounded once.
            values = np.asarray(keras.ops.convert_to_numpy(variable), "float64")
            variable.assign((values * factors).astype("float32"))
