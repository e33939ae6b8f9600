"""A user's model once more: in another dtype policy, or the same layers in a model that was never compiled.

A module of its own because these work on any model and leave the original as it is. A model is described the way
Keras saves it, the description changed, built again, and the weights copied: for another policy here, for fewer
units in `compress.prune`.
"""

from collections.abc import Iterator, Sequence
from typing import Any

import keras
import numpy as np

from cellerate.errors import ConfigError, ModelError
from cellerate.models.text import check_policy, layer_seeds

_Config = dict[str, Any]
# Where a description holds no layers: how layers are connected, and what they were built and trained with.
_NOT_LAYERS = frozenset({"inbound_nodes", "build_config", "compile_config"})


def with_dtype_policy(model: keras.Model, policy: Any) -> keras.Model:
    """Copies a model with another dtype policy and the same weights.

    Under a 16-bit policy these stay float32: the output layers, so that losses and probabilities keep their
    precision (those of nested models too, unless recurrent: that is where the time goes); and, in a model
    that already mixes policies, every layer that was float32 there, since someone chose it to be. Input
    layers keep their dtype. Any other policy applies to every layer.

    Args:
        model: A Functional or Sequential model, built; nested models, wrappers and custom layers are fine as
            long as they can be described and rebuilt, as for saving.
        policy: A Keras dtype policy or its name, such as "mixed_bfloat16".

    Returns:
        The copy, not compiled.

    Raises:
        ConfigError: The policy is unknown.
        ModelError: The model is subclassed, not built, quantised, or shares one layer between nested models.
    """
    if policy is None:
        raise ConfigError("policy must name a dtype policy, such as 'mixed_bfloat16'; got None.")
    target = check_policy(policy)
    description = describe(model)
    before = {_policy_name(config) for config in _layers(description)}
    if quantised := sorted(name for name in before if "_from_" in name):
        raise ModelError(
            f"model {model.name!r} is quantised ({', '.join(quantised)}), so its dtype policy cannot be "
            "changed. Use the model as it was before quantisation."
        )
    narrow = target.compute_dtype in ("float16", "bfloat16")
    outputs = _outputs(description)
    for config in _layers(description):
        chosen = len(before) > 1 and _policy_name(config) == "float32"
        keep = narrow and (chosen or id(config) in outputs)
        config["dtype"] = "float32" if keep else keras.saving.serialize_keras_object(target)
    return rebuild(model, description)


def same_layers(model: keras.Model, name: str | None = None) -> keras.Model:
    """A model of the same layers that was never compiled: to compile it, or save it, without the other's state.

    Args:
        model: A built model.
        name: The name of the new model; None for the same.

    Returns:
        It, sharing every layer; the model itself where it has no graph to share.
    """
    name = name or model.name
    if isinstance(model, keras.Sequential):
        # One that was never called has inputs, but no `input`.
        return keras.Model(model.inputs[0], model.outputs[0], name=name)
    return keras.Model(model.input, model.output, name=name) if hasattr(model, "operations") else model


def is_functional(model: Any) -> bool:
    """Whether a model is what `keras.Model(inputs, outputs)` gives: its class has no public name in Keras."""
    kind = type(model)
    return kind.__name__ == "Functional" and kind.__module__.split(".")[0] == "keras"


def describe(model: keras.Model) -> dict[str, Any]:
    """The model as Keras would save it, without its training; `rebuild` takes it, changed.

    Raises:
        ModelError: The model is subclassed, or not built.
    """
    if type(model) is not keras.Sequential and not is_functional(model):
        raise ModelError(
            f"model {getattr(model, 'name', model)!r} is a {type(model).__name__}, whose layers cannot be "
            "rewritten: expected a Functional or Sequential model. Build it as keras.Model(inputs, outputs)."
        )
    if not model.built:
        raise ModelError(
            f"model {model.name!r} is not built, so it has no weights yet. Give it a keras.Input, or call it."
        )
    description: _Config = keras.saving.serialize_keras_object(model)
    description.pop("compile_config", None)
    return description


def rebuild(
    model: keras.Model, description: dict[str, Any], weights: Sequence[np.ndarray] | None = None
) -> keras.Model:
    """A model from the description of another, with its weights.

    Args:
        model: The model that was described.
        description: Of `describe`, changed.
        weights: The values of all weights in the order of `model.weights`; None for those of the model.

    Returns:
        It, not compiled.

    Raises:
        ModelError: It cannot be built, or has other weights.
    """
    copy = _built(model, description)
    # Through NumPy: JAX's trainer gives its arrays away while it trains, so the two must not share any.
    values = model.get_weights() if weights is None else weights
    if [tuple(w.shape) for w in values] != [tuple(w.shape) for w in copy.weights]:
        raise ModelError(
            f"model {model.name!r} has {len(values)} weights and its copy {len(copy.weights)}, or of "
            "other shapes: nested models share a layer, or a custom layer's get_config is incomplete."
        )
    copy.set_weights(values)
    return copy


def reinitialized(model: keras.Model, *, seed: int) -> keras.Model:
    """A model of the same layers with new weights, drawn by their initializers.

    Args:
        model: A Functional or Sequential model. It is not changed.
        seed: Of the initializers that have none of their own.

    Raises:
        ModelError: It cannot be built.
    """
    description = describe(model)
    seeds = layer_seeds(seed)
    for node in _nodes(description):
        # Only what draws has a seed; without one it would draw other weights each time.
        if "initializers" in str(node.get("module")) and node["config"].get("seed", 0) is None:
            node["config"]["seed"] = next(seeds)
    return _built(model, description)


def layer_nodes(description: dict[str, Any], path: str = "") -> Iterator[tuple[str, dict[str, Any]]]:
    """Every layer in the description of a model, those in nested models and Keras's wrappers too.

    Yields:
        (path, node): the names down to the layer, joined by "/", and what describes it, with its "config".
    """
    config = description["config"]
    inner = list(config["layers"]) if isinstance(config.get("layers"), list) else []
    inner += [config[key] for key in ("layer", "backward_layer") if isinstance(config.get(key), dict)]
    for node in inner:
        if isinstance(node.get("config"), dict):
            found = f"{path}{node['config'].get('name')}"
            yield found, node
            yield from layer_nodes(node, f"{found}/")


def _built(model: keras.Model, description: dict[str, Any]) -> keras.Model:
    """What a description of a model, changed, builds; its weights are new. Raises `ModelError` if it cannot be."""
    try:
        # The model is in this process already, with whatever code it carries: nothing unsafe is let in here.
        return keras.saving.deserialize_keras_object(description, _custom_objects(model), safe_mode=False)
    except (TypeError, ValueError, KeyError, AttributeError, NotImplementedError) as error:
        reason = str(error).strip().split("\n", 1)[0][:300]
        raise ModelError(
            f"model {model.name!r} cannot be rebuilt from its description: {reason} "
            "A custom layer needs get_config, and @keras.saving.register_keras_serializable."
        ) from error


def _custom_objects(model: keras.Model) -> dict[str, type]:
    """The classes of this model's own layers, so that custom ones need not be registered."""
    found: dict[str, type] = {}
    for layer in model.layers:
        if isinstance(layer, keras.Model):
            found |= _custom_objects(layer)
        if not type(layer).__module__.startswith("keras."):
            found[type(layer).__name__] = type(layer)
    return found


def _nodes(tree: Any) -> Iterator[_Config]:
    """Every described object inside `tree`, outermost first."""
    if isinstance(tree, dict):
        if isinstance(tree.get("config"), dict) and "class_name" in tree:
            yield tree
        for key, value in list(tree.items()):
            if key not in _NOT_LAYERS:
                yield from _nodes(value)
    elif isinstance(tree, list | tuple):
        for value in tree:
            yield from _nodes(value)


def _layers(description: _Config) -> Iterator[_Config]:
    """The config of every layer but inputs."""
    for node in _nodes(description):
        config = node["config"]
        # Only layers have both; an operation such as a cast has a dtype that means something else.
        if "dtype" in config and "trainable" in config and node["class_name"] != "InputLayer":
            yield config


def _outputs(description: _Config, *, outermost: bool = True) -> set[int]:
    """The `id` of each config whose layer must stay precise: the outputs, with what they wrap."""
    config = description["config"]
    names = _output_names(config)
    found: set[int] = set()
    for node in config["layers"]:
        leaves = node["config"].get("name") in names
        if isinstance(node["config"].get("layers"), list):
            found |= _outputs(node, outermost=outermost and leaves)
        elif leaves and (outermost or not any(map(_is_recurrent, _nodes(node)))):
            found |= {id(inner["config"]) for inner in _nodes(node)}
    return found


def _is_recurrent(node: _Config) -> bool:
    return {"stateful", "return_sequences"} <= node["config"].keys()


def _output_names(config: _Config) -> set[str]:
    """The names of the layers a Functional or Sequential model's outputs come from."""
    if "output_layers" not in config:
        return {config["layers"][-1]["config"]["name"]} if config["layers"] else set()
    names: set[str] = set()

    def collect(tree: Any) -> None:
        if isinstance(tree, list | tuple) and len(tree) == 3 and isinstance(tree[0], str):
            names.add(tree[0])
        elif isinstance(tree, dict):
            for value in tree.values():
                collect(value)
        elif isinstance(tree, list | tuple):
            for value in tree:
                collect(value)

    collect(config["output_layers"])
    return names


def _policy_name(config: _Config) -> str:
    dtype = config["dtype"]
    if isinstance(dtype, dict):
        return str(dtype["config"].get("name", dtype["class_name"]))
    return str(dtype)
