"""Parts of Keras's backend: the values of variables without the casts of their layer, and the recurrent functions."""

import importlib
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


def recurrent_functions(backend: str) -> Any:
    """The module of a backend that has `rnn`, `lstm` and `gru`, which Keras 3.16 exports elsewhere than 3.15."""
    return importlib.import_module(f"keras.src.backend.{backend}.rnn")
