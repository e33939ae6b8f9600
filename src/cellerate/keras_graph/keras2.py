"""Keras 2 beside Keras 3: recognises its models, which look like those of Keras 3, and computes its masks.

A merge of tensors counts a step in Keras 2 if all masks do. Keras 3 forgets the masks where an input has none, and
otherwise counts a step that one mask counts. It also forgets the mask of a layer that gets its initial state.
"""

from __future__ import annotations

import contextlib
import functools
import inspect
import threading
from collections.abc import Iterator
from typing import Any

import keras
from keras import layers, tree
from keras.src import backend
from keras.src.layers.merging.base_merge import Merge

from cellerate.errors import ModelError

# tf_keras; Keras 2.13 to 2.15, and the releases before; tf.keras up to 2.5.
_MODULES = ("tf_keras.", "keras.src.engine.", "keras.engine.", "tensorflow.python.keras.")
# Classes of Keras are changed while a model is built, so one is built at a time.
_building = threading.RLock()


def refuse(value: Any) -> None:
    """Raises `ModelError` for a model or layer of Keras 2, and says how to convert it to Keras 3."""
    found = next((kind for kind in type(value).__mro__ if kind.__module__.startswith(_MODULES)), None)
    if found is None:
        return
    raise ModelError(
        f"{type(value).__name__} is of Keras 2 ({found.__module__.split('.')[0]}), and Cellerate takes models of "
        "Keras 3. "
        "Build it again with keras.layers and copy the weights with new.set_weights(old.get_weights()); or save it "
        "with old.save('old.keras') and give that file to `cellerate pack`, `cellerate explain` or cellerate.pack."
    )


@contextlib.contextmanager
def masks_of_keras_2(without: str) -> Iterator[list[str]]:
    """Make the models that this thread builds compute masks as Keras 2 does.

    Args:
        without: The end of the names of layers that the model does not have in Keras 2, and that keep masks.

    Yields:
        Each mask that only Keras 2 computes, in words.
    """
    refused: list[str] = []
    builder = _Builder(without, refused)
    with _building:
        kinds: dict[tuple[type, str], Any] = {
            (keras.Layer, "__call__"): builder.call,
            (Merge, "compute_mask"): builder.merged,
            (layers.Concatenate, "compute_mask"): builder.merged,
        }
        before = {(kind, name): vars(kind)[name] for kind, name in kinds}
        try:
            for (kind, name), changed in kinds.items():
                setattr(kind, name, _of_this_thread(before[kind, name], changed))
            yield refused
        finally:
            for (kind, name), function in before.items():
                setattr(kind, name, function)


def _of_this_thread(before: Any, changed: Any) -> Any:
    """A method that is changed in this thread only, and gets the method before as its first argument."""
    thread = threading.get_ident()

    @functools.wraps(before)
    def method(self: Any, *args: Any, **kwargs: Any) -> Any:
        if threading.get_ident() != thread:
            return before(self, *args, **kwargs)
        return changed(functools.partial(before, self), self, *args, **kwargs)

    return method


class _Builder:
    """Calls layers with the masks of Keras 2.

    Args:
        without: The end of the names of layers that the model does not have in Keras 2.
        refused: Gets each mask that cannot be recorded, in words.
    """

    def __init__(self, without: str, refused: list[str]) -> None:
        self._without, self._refused = without, refused
        self._depth = 0
        # Outputs of nested models whose masks are known only when the model runs.
        self._unknown: dict[int, Any] = {}

    def call(self, before: Any, layer: Any, *args: Any, **kwargs: Any) -> Any:
        """Calls a layer, with the masks of its arguments as arguments."""
        tensors = _symbolic((args, kwargs))
        masks = [backend.get_keras_mask(one) for one in tensors]
        masked = any(mask is not None for mask in masks)
        unknown = any(id(one) in self._unknown for one in tensors)
        self._check(layer, tensors, masked=masked or unknown)
        if unknown and (_is_merge(layer) or kwargs.get("initial_state") is not None):
            self._refuse(layer, "read the mask of a nested model")
        if masked and self._depth == 0:
            # The graph records what is given, and computes the rest as Keras 3 does.
            kwargs |= _masks_to_give(layer, args, kwargs)
        self._depth += 1
        try:
            found = before(*args, **kwargs)
        finally:
            self._depth -= 1
            for tensor, mask in zip(tensors, masks, strict=True):
                # MultiHeadAttention removes the masks of what it reads.
                backend.set_keras_mask(tensor, mask)
        nested = layer.outputs if isinstance(layer, keras.Model) else []
        if (unknown and layer.supports_masking) or (nested and (masked or _has_mask(nested))):
            for output in _symbolic(found):
                # Keras gives it the mask of the input, whatever the layers inside do with that.
                backend.set_keras_mask(output, None)
                if len(output.shape) > 2:
                    self._unknown[id(output)] = output
        return found

    def _check(self, layer: Any, tensors: list[Any], *, masked: bool) -> None:
        """Refuses a layer that does something else with masks in Keras 3."""
        inner = layer.layer if isinstance(layer, layers.TimeDistributed) else None
        if (
            isinstance(inner, layers.Masking)
            or getattr(inner, "mask_zero", False)
            or (isinstance(inner, keras.Model) and _has_mask(inner.outputs))
        ):
            self._refuse(layer, "masked the steps inside of each step")
        elif masked and not layer.name.endswith(self._without) and _may_keep(layer, tensors[0]):
            self._refuse(layer, "dropped the mask of its input")
        elif masked and isinstance(layer, keras.Model):
            for one in layer._flatten_layers(include_self=False):
                states = [node.arguments.kwargs.get("initial_state") for node in one._inbound_nodes]
                if _is_merge(one) or _may_keep(one) or any(state is not None for state in states):
                    self._refuse(one, f"got masks from outside of its model {layer.name!r}")

    def merged(self, before: Any, layer: Any, inputs: Any, mask: Any = None) -> Any:
        """The mask of a merge, of those steps that all masks count."""
        given = list({id(one): one for one in mask or () if one is not None}.values())
        along_features = not isinstance(layer, layers.Concatenate) or layer.axis in (
            -1,
            len(inputs[0].shape) - 1,
        )
        if not given or not along_features:
            return before(inputs, mask)
        return functools.reduce(keras.ops.logical_and, given)

    def _refuse(self, layer: Any, done: str) -> None:
        self._refused.append(f"the layer {layer.name!r} ({type(layer).__name__}) {done}")


def _symbolic(values: Any) -> list[Any]:
    return [one for one in tree.flatten(values) if isinstance(one, keras.KerasTensor)]


def _has_mask(tensors: Any) -> bool:
    return any(backend.get_keras_mask(one) is not None for one in tree.flatten(tensors))


def _is_merge(layer: Any) -> bool:
    return isinstance(layer, Merge) and not isinstance(layer, layers.Dot)


def _may_keep(layer: Any, x: Any = None) -> bool:
    """True for layers that drop a mask in Keras 2, and keep it in Keras 3 on some backend at least."""
    if isinstance(layer, layers.Reshape | layers.Permute):
        return x is not None and tuple(layer.compute_output_shape(x.shape)) == tuple(x.shape)
    return isinstance(layer, layers.Rescaling | layers.Normalization | layers.Identity)


def _masks_to_give(layer: Any, args: Any, kwargs: dict[str, Any]) -> dict[str, Any]:
    """The masks that a layer reads and that its call does not name."""
    parameters = inspect.signature(layer.call).parameters
    given = {**dict(zip(parameters, args, strict=False)), **kwargs}
    found = {}
    for place, (name, value) in enumerate(given.items()):
        wanted = "mask" if place == 0 and "mask" in parameters else f"{name}_mask"
        if wanted in parameters and given.get(wanted) is None:
            masks = tree.map_structure(backend.get_keras_mask, value)
            if any(mask is not None for mask in tree.flatten(masks)):
                found[wanted] = masks
    return found
