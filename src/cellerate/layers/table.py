"""The recurrent Keras layers that Cellerate has kernels for: one row a class.

The module in a row has `fit_conditions(layer, implementation)`, the requirements of an implementation, and `run`, which
replaces the layer's `inner_loop`; see `fused_lstm`.
"""

from __future__ import annotations

from types import ModuleType
from typing import Any

import keras
from keras import layers

from cellerate.errors import ModelError
from cellerate.layers import fused, fused_lstm
from cellerate.messages import argument

ROWS: dict[type[keras.Layer], ModuleType] = {
    layers.LSTM: fused_lstm,
}
LAYERS = tuple(ROWS)
KNOWN = ", ".join(f"keras.layers.{kind.__name__}" for kind in LAYERS)
"""The names of the classes that have kernels."""


def kernels_of(layer: Any) -> ModuleType:
    """The row of a layer, an instance of one of `LAYERS`."""
    return next(module for layer_class, module in ROWS.items() if isinstance(layer, layer_class))


def unfit(layer: Any, implementation: str, *, named: bool) -> str | None:
    """Why a recurrent layer cannot run on an implementation; None if it can.

    Args:
        layer: Any `keras.layers.RNN`.
        implementation: "cellerate-cpu" or "cellerate-cuda".
        named: Whether the user named the implementation: it then runs even if it is slower here or failed its check.
    """
    if not isinstance(layer, LAYERS):
        return f"class: {type(layer).__name__}, where Cellerate has kernels for {KNOWN}"
    met = kernels_of(layer).fit_conditions(layer, implementation)
    failed = next((c for c in met if not c.holds and not (named and c.name in fused.BESIDE_NAMED)), None)
    return None if failed is None else f"{failed.name}: {failed.found}"


def check_all_fit(model: keras.Layer, implementation: str) -> None:
    """Raises `ModelError` unless the model has recurrent layers and a named implementation can run all of them."""
    recurrent = [one for one in model._flatten_layers(include_self=True) if isinstance(one, layers.RNN)]
    if not recurrent:
        raise ModelError(
            f"{model.name!r} has no recurrent layers, so {implementation} has nothing to run in it: leave "
            f"{argument('implementation')} out, or give a model with keras.layers.LSTM. If its layers are made in "
            "its first call, call it on data first."
        )
    reasons = {one.name: unfit(one, implementation, named=True) for one in recurrent}
    refused = [f"{name!r}: {reason}" for name, reason in reasons.items() if reason is not None]
    if refused:
        raise ModelError(
            f"{implementation} cannot run the layer{'s' if len(refused) > 1 else ''} {'; '.join(refused)}. "
            f"With {argument('implementation', 'auto')} such layers stay with Keras."
        )
