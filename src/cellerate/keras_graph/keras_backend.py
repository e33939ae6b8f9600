"""Parts of Keras's backend: variables without the casts of their layer, masks on tensors, and recurrent functions."""

from __future__ import annotations

import importlib
from typing import Any

import keras
from keras import ops
from keras.src import backend as masks
from keras.src.backend.common.variables import AutocastScope


def stored(variable: Any) -> Any:
    """The value of a variable in its own dtype. With LoRA an Embedding gives a tensor in place of a variable."""
    with AutocastScope(None):
        return variable.value if isinstance(variable, keras.Variable) else variable


def weight(variable: Any) -> Any:
    """The stored value of a variable in float32: the kernels round to bfloat16 themselves, and only for products."""
    value = stored(variable)
    return value if keras.backend.standardize_dtype(value.dtype) == "float32" else ops.cast(value, "float32")


def with_mask_of(other: Any, tensor: Any) -> Any:
    """Puts the mask of another tensor, if it has one, on a tensor, and returns it."""
    mask = masks.get_keras_mask(other)
    if mask is not None:
        masks.set_keras_mask(tensor, mask)
    return tensor


def recurrent_functions(backend: str) -> Any:
    """The module of a backend that has `rnn`, `lstm` and `gru`, which Keras 3.16 exports elsewhere than 3.15."""
    return importlib.import_module(f"keras.src.backend.{backend}.rnn")
