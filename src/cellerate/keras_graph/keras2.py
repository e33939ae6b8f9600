"""Recognises the models and layers of Keras 2, which look like those of Keras 3, without importing Keras 2."""

from __future__ import annotations

from typing import Any

from cellerate.errors import ModelError

# tf_keras; Keras 2.13 to 2.15, and the releases before; tf.keras up to 2.5.
_MODULES = ("tf_keras.", "keras.src.engine.", "keras.engine.", "tensorflow.python.keras.")


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
