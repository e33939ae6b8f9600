"""The calls of layers in the description of a Functional model, as Keras 2 writes them and as Keras 3 does.

Keras 2 writes a list of the tensors that a layer gets, each with the name of a layer, the number of a call of it, and
the number of an output. It counts the calls of a nested model from one, and writes the states that a recurrent layer
begins with behind its input.
"""

from __future__ import annotations

from typing import Any

MODELS = ("Sequential", "Functional", "Model")
_WITH_STATE = (
    *("LSTM", "GRU", "SimpleRNN", "RNN", "Bidirectional"),
    *("ConvLSTM1D", "ConvLSTM2D", "ConvLSTM3D"),
)


def translate_calls(model: dict[str, Any]) -> bool:
    """Write the calls in a model as Keras 3 does, and return whether there was one of Keras 2.

    Args:
        model: The "config" of a model's description. It is changed.
    """
    kinds = {node["name"]: node["class_name"] for node in model["layers"] if "name" in node}
    changed = False
    for node in model["layers"]:
        calls = node.get("inbound_nodes") or []
        for place, call in enumerate(calls):
            if _is_of_keras_2(call, kinds):
                calls[place] = _call(node["class_name"], call, kinds)
                # The calls build the layer. The shapes here count states as inputs, and lack those of options.
                node.pop("build_config", None)
                changed = True
    outputs = model.get("output_layers")
    if changed and outputs is not None:
        # Keras 3 knows where Functional models begin to count, but not Sequential ones.
        model["output_layers"] = _outputs(outputs, kinds)
    return changed


def _is_of_keras_2(call: Any, kinds: dict[str, str]) -> bool:
    if isinstance(call, dict):
        return bool(call) and "args" not in call and all(_is_tensor(one, kinds) for one in call.values())
    return isinstance(call, list) and bool(call) and all(_is_tensor(one, kinds) for one in call)


def _is_tensor(value: Any, kinds: dict[str, str]) -> bool:
    return (
        isinstance(value, list)
        and len(value) in (3, 4)
        and isinstance(value[0], str)
        and value[0] in kinds
        and all(type(number) is int for number in value[1:3])
    )


def _call(kind: str, call: Any, kinds: dict[str, str]) -> dict[str, Any]:
    """A call of a layer in the words of Keras 3."""
    tensors = list(call.values()) if isinstance(call, dict) else call
    # What is not given may be left out; Keras 3 then gives a layer its mask.
    options = tensors[-1][3] if len(tensors[-1]) == 4 else {}
    kwargs = {name: _values(value, kinds) for name, value in options.items() if value is not None}
    given: Any = [_values(tensor, kinds) for tensor in tensors]
    if isinstance(call, dict):
        given = dict(zip(call, given, strict=True))
    elif len(given) == 1:
        (given,) = given
    elif kind in _WITH_STATE and "constants" not in kwargs:
        given, *kwargs["initial_state"] = given
    return {"args": [given], "kwargs": kwargs}


def _values(value: Any, kinds: dict[str, str]) -> Any:
    """A value with the tensors in it in the words of Keras 3, which asks for a shape but does not use it."""
    if _is_tensor(value, kinds):
        name, call, output = value[:3]
        history = [name, call - (kinds[name] in MODELS), output]
        return {
            "class_name": "__keras_tensor__",
            "config": {"shape": [], "dtype": "float32", "keras_history": history},
        }
    if isinstance(value, list):
        return [_values(one, kinds) for one in value]
    return value


def _outputs(value: Any, kinds: dict[str, str]) -> Any:
    if _is_tensor(value, kinds):
        return [value[0], value[1] - (kinds[value[0]] == "Sequential"), *value[2:]]
    if isinstance(value, dict):
        return {name: _outputs(one, kinds) for name, one in value.items()}
    return [_outputs(one, kinds) for one in value] if isinstance(value, list) else value
