"""Which recurrent layers of Keras have kernels of Cellerate: one row a class.

The module in a row has `fit_conditions(layer, implementation)`, what an implementation requires of a layer, and `run`,
which takes the place of the layer's `inner_loop`; `fused_lstm` has them in full.
"""

from types import ModuleType
from typing import Any

import keras
from keras import layers

from cellerate.layers import fused, fused_lstm

ROWS: dict[type[keras.Layer], ModuleType] = {
    layers.LSTM: fused_lstm,
}
LAYERS = tuple(ROWS)


def kernels_of(layer: Any) -> ModuleType:
    """The row of a layer, an instance of one of `LAYERS`."""
    return next(module for layer_class, module in ROWS.items() if isinstance(layer, layer_class))


def unfit(layer: Any, implementation: str, *, named: bool) -> str | None:
    """Why a layer cannot run on an implementation, in words; None if it can.

    Args:
        layer: The layer.
        implementation: "cellerate-cpu" or "cellerate-cuda".
        named: Whether the user named it: then it runs even if it failed its own check.
    """
    met = kernels_of(layer).fit_conditions(layer, implementation)
    failed = next((c for c in met if not c.holds and not (named and c.name == fused.CHECK)), None)
    return None if failed is None else f"{failed.name}: {failed.found}"
