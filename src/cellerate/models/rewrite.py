"""Rewrites a user's model: in another dtype policy, or as an uncompiled model of the same layers.

It works on any model and leaves the original unchanged. To rewrite a model, describe it the way Keras saves it,
change the description, build it again and copy the weights. This module does so for another dtype policy,
`compress.prune` for fewer units.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import keras
import numpy as np

from cellerate.errors import ConfigError, ModelError
from cellerate.keras_graph import keras2
from cellerate.models.text import check_policy, layer_seeds

_Config = dict[str, Any]
# Entries of a description that hold no layers: how layers are connected, built and trained.
_NOT_LAYERS = frozenset({"inbound_nodes", "build_config", "compile_config"})


def with_dtype_policy(model: keras.Model, policy: Any) -> keras.Model:
    """Copies a model with another dtype policy and the same weights.

    Under a 16-bit policy two kinds of layers stay float32. The first are the output layers, so that losses and
    probabilities keep their precision; those of nested models too, unless they are recurrent, where most of
    the time goes. The second, in a model that already mixes policies, are the layers that were float32 there,
    because someone chose that. Input layers keep their dtype. Any other policy applies to every layer.

    Args:
        model: A built Functional or Sequential model. Nested models, wrappers and custom layers are fine if
            they can be described and rebuilt, as for saving.
        policy: A Keras dtype policy or its name, such as "mixed_bfloat16".

    Returns:
        The copy, not compiled.

    Raises:
        ConfigError: The policy is unknown.
        ModelError: The model is subclassed, not built, quantised, or shares one layer between nested models.
    """
    if policy is None:
        raise ConfigError("policy must name a dtype policy, such as 'mixed_bfloat16', not None.")
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
    """An uncompiled model of the same layers, to compile or save without the compile state of the original.

    Args:
        model: A built model.
        name: The name of the new model; None for the same.

    Returns:
        The new model, which shares every layer; the model itself if it has no graph to share.
    """
    name = name or model.name
    if isinstance(model, keras.Sequential):
        # A model that was never called has `inputs`, but no `input`.
        return keras.Model(model.inputs[0], model.outputs[0], name=name)
    return keras.Model(model.input, model.output, name=name) if hasattr(model, "operations") else model


def is_functional(model: Any) -> bool:
    """True if `keras.Model(inputs, outputs)` made the model: its class has no public name in Keras."""
    kind = type(model)
    return kind.__name__ == "Functional" and kind.__module__.split(".")[0] == "keras"


def describe(model: keras.Model) -> dict[str, Any]:
    """The model's description as Keras would save it, without its training; change it and pass it to `rebuild`.

    Raises:
        ModelError: The model is subclassed, or not built.
    """
    if type(model) is not keras.Sequential and not is_functional(model):
        keras2.refuse(model)
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
    """Builds a model from a changed description of another, and gives it the weights.

    Args:
        model: The model that was described.
        description: The changed result of `describe`.
        weights: The values of all weights in the order of `model.weights`; None for those of `model`.

    Returns:
        The new model, not compiled.

    Raises:
        ModelError: The new model cannot be built, or its weights have other shapes.
    """
    copy = _built(model, description)
    # Copied through NumPy: JAX's trainer donates its arrays while it trains, so the models must not share any.
    values = model.get_weights() if weights is None else weights
    if [tuple(w.shape) for w in values] != [tuple(w.shape) for w in copy.weights]:
        raise ModelError(
            f"model {model.name!r} has {len(values)} weights and its copy {len(copy.weights)}, or of "
            "other shapes: nested models share a layer, or a custom layer's get_config is incomplete."
        )
    copy.set_weights(values)
    for layer in _adapted(copy):
        # The layer computes with copies of its weights, which otherwise only loading a file renews.
        layer.finalize_state()
    return copy


def reinitialized(model: keras.Model, *, seed: int) -> keras.Model:
    """A model of the same layers with new weights, drawn by their initializers.

    The moments that a `Normalization` has learnt with `adapt` stay.

    Args:
        model: A Functional or Sequential model. It is not changed.
        seed: Seeds the initializers that have no seed of their own.

    Raises:
        ModelError: The new model cannot be built.
    """
    description = describe(model)
    seeds = layer_seeds(seed)
    for node in _nodes(description):
        # Only random initializers have a seed; with None they would draw other weights each time.
        if "initializers" in str(node.get("module")) and node["config"].get("seed", 0) is None:
            node["config"]["seed"] = next(seeds)
    copy = _built(model, description)
    for layer, before in zip(_adapted(copy), _adapted(model), strict=True):
        layer.set_weights(before.get_weights())
        layer.finalize_state()
    return copy


def layer_nodes(description: dict[str, Any], path: str = "") -> Iterator[tuple[str, dict[str, Any]]]:
    """Every layer in the description of a model, including those in nested models and Keras's wrappers.

    Yields:
        (path, node): the names down to the layer, joined by "/", and its description, with its "config".
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
    """Builds the model of a changed description, with new weights; raises `ModelError` if that fails."""
    try:
        # The model and any code it carries are in this process already, so this lets in nothing unsafe.
        return keras.saving.deserialize_keras_object(description, _custom_objects(model), safe_mode=False)
    except (TypeError, ValueError, KeyError, AttributeError, NotImplementedError) as error:
        reason = str(error).strip().split("\n", 1)[0][:300]
        raise ModelError(
            f"model {model.name!r} cannot be rebuilt from its description: {reason} "
            "A custom layer needs get_config, and @keras.saving.register_keras_serializable."
        ) from error


def _adapted(model: keras.Model) -> list[keras.layers.Normalization]:
    """The layers of a model, nested ones too, that scale by the moments that `adapt` has learnt."""
    return [layer for layer in model._flatten_layers() if isinstance(layer, keras.layers.Normalization)]


def _custom_objects(model: keras.Model) -> dict[str, type]:
    """The classes of this model's layers, so that custom ones need not be registered."""
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
    """The config of every layer except inputs."""
    for node in _nodes(description):
        config = node["config"]
        # Only layers have both; the dtype of an operation such as a cast means something else.
        if "dtype" in config and "trainable" in config and node["class_name"] != "InputLayer":
            yield config


def _outputs(description: _Config, *, outermost: bool = True) -> set[int]:
    """The `id` of each config whose layer must stay precise: the output layers and the layers they wrap."""
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
    """The names of the layers that produce the outputs of a Functional or Sequential model."""
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
