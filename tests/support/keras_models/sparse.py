"""Sparse tensors of the backends."""

from typing import Any

import keras


def sparse_tensor(values: Any) -> Any:
    """A sparse tensor of the backend that the tests run on."""
    if keras.backend.backend() == "jax":
        from jax.experimental.sparse import BCOO

        return BCOO.fromdense(values)
    if keras.backend.backend() == "tensorflow":
        import tensorflow as tf

        return tf.sparse.from_dense(values)
    return keras.ops.convert_to_tensor(values).to_sparse()
