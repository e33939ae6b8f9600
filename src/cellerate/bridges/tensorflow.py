"""What Cellerate asks of TensorFlow itself: whether a GPU is there, compiling a generation step, datasets.

One file a framework, imported only when that backend runs; nothing else in Cellerate imports TensorFlow.
"""

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import tensorflow as tf

Step = Callable[[tuple[Any, ...], np.ndarray], tuple[tuple[Any, ...], np.ndarray | None]]


def gpu_available() -> bool:
    """Whether TensorFlow computes on a GPU here: the test Keras's cuDNN path makes."""
    return bool(tf.config.list_logical_devices("GPU"))


def compile_step(function: Callable[..., Any], variables: Sequence[Any], *, loops: bool = False) -> Step:
    """Compiles a generation step, once for each shape of `ids`.

    Args:
        function: `(None, state, ids) -> (state, logits or None)`, where `state` is a tuple of tensors and
            `ids` an int32 tensor. None stands for the values: the function reads the variables themselves,
            which a `tf.function` captures by reference, so that further training is seen at once.
        variables: The Keras variables it reads; not used, see `function`.
        loops: Whether the function loops over many time steps. A single step is compiled by XLA, which takes
            a third off its time on a CPU; a loop is left to the graph executor, as XLA has no cuDNN.

    Returns:
        `(state, ids) -> (state, logits)` with the logits as a NumPy array; the state stays on the device.
    """
    del variables
    programs: dict[tuple[int, ...], Any] = {}

    def flat(*tensors: Any) -> tuple[Any, ...]:
        state, logits = function(None, tensors[:-1], tensors[-1])
        return (*state, logits) if logits is not None else tuple(state)

    def run(state: tuple[Any, ...], ids: np.ndarray) -> tuple[tuple[Any, ...], np.ndarray | None]:
        program = programs.get(ids.shape)
        if program is None:
            # A concrete function of flat tensors: its call skips the matching of nested signatures, which
            # costs more than the step itself.
            specs = [tf.TensorSpec(s.shape, s.dtype) for s in state] + [tf.TensorSpec(ids.shape, tf.int32)]
            traced = tf.function(flat, jit_compile=not loops, autograph=False)
            program = programs[ids.shape] = traced.get_concrete_function(*specs)
        outputs = program(*state, tf.constant(ids))
        new_state = tuple(outputs[: len(state)])
        return new_state, outputs[-1].numpy() if len(outputs) > len(state) else None

    return run


def tf_dataset(source: Any, epoch: int, *, cache: bool = False) -> tf.data.Dataset:
    """One epoch of a `cellerate.data.batches.BatchSource` as a dataset, batches in order.

    Args:
        source: The batches. If its `fixed_shapes` is true, the tensors have static shapes; otherwise only
            the batch axis is static.
        epoch: Which epoch.
        cache: Keep the batches in memory after the first pass.

    Returns:
        A dataset with the structure of `source.batch`, its length known. Several threads ask for batches.
    """
    sample = source.batch(epoch, 0)
    arrays = tf.nest.flatten(sample)
    fixed = getattr(source, "fixed_shapes", False)
    shapes = [array.shape if fixed else (len(array), *[None] * (array.ndim - 1)) for array in arrays]
    types = [array.dtype for array in arrays]

    def make(index: np.ndarray) -> list[np.ndarray]:
        return tf.nest.flatten(source.batch(epoch, int(index)))

    def load(index: tf.Tensor) -> Any:
        tensors = tf.numpy_function(make, [index], types, stateful=False)
        for tensor, shape in zip(tensors, shapes, strict=True):
            tensor.set_shape(shape)
        return tf.nest.pack_sequence_as(sample, tensors)

    dataset = tf.data.Dataset.range(len(source))
    dataset = dataset.map(load, num_parallel_calls=tf.data.AUTOTUNE, deterministic=True)
    if cache:
        dataset = dataset.cache()
    return dataset.prefetch(tf.data.AUTOTUNE)
