"""The values of a Keras variable, without the casts that its layer applies."""

from typing import Any

import keras
from keras import ops
from keras.src.backend.common.variables import AutocastScope


def stored(variable: Any) -> Any:
    """The value of a variable in its own dtype. With LoRA an Embedding gives a tensor in place of a variable."""
    with AutocastScope(None):
        return variable.value if isinstance(variable, keras.Variable) else variable


def weight(variable: Any) -> Any:
    """The stored value of a variable in float32: the kernels round to bfloat16 themselves, and only for products."""
    value = stored(variable)
    return value if keras.backend.standardize_dtype(value.dtype) == "float32" else ops.cast(value, "float32")
