"""What Cellerate needs from TensorFlow itself: whether there is a GPU, compiling a step, datasets, the LSTM.

Only this module imports TensorFlow; it is imported only where TensorFlow is asked for.
"""

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from cellerate.kernels import dense as native_dense
from cellerate.kernels.lstm import cpu
from cellerate.kernels.lstm.spec import LstmOptions

Step = Callable[[tuple[Any, ...], np.ndarray], tuple[tuple[Any, ...], np.ndarray | None]]


def gpu_available() -> bool:
    """Whether TensorFlow computes on a GPU here: the test Keras's cuDNN path makes."""
    return bool(tf.config.list_logical_devices("GPU"))


def compile_step(function: Callable[..., Any], variables: Sequence[Any], *, loops: bool = False) -> Step:
    """Compiles a generation step, once for each shape of `ids`.

    Args:
        function: `(None, state, ids) -> (state, logits or None)`, where `state` is a tuple of tensors and
            `ids` an int32 tensor. None stands for the values: the function reads the variables themselves. A
            `tf.function` captures them by reference, so further training takes effect at once.
        variables: The Keras variables it reads; not used, see `function`.
        loops: Whether the function loops over many time steps. XLA compiles a single step, which takes a third
            off its time on a CPU; a loop is left to the graph executor, as XLA has no cuDNN.

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
            # A concrete function of flat tensors skips the matching of nested signatures at each call, which would
            # cost more than the step itself.
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
        A dataset with the structure of `source.batch` and known length. Several threads request batches at once.
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


def in_place_changes(tensor: Any) -> int:
    """How often a tensor was changed in place: TensorFlow's tensors never are."""
    del tensor
    return 0


def lstm(
    arrays: dict[str, Any], options: LstmOptions, return_sequences: bool, *, training: bool = True
) -> tuple[Any, Any, Any]:
    """One LSTM layer on the native core, eagerly or in a `tf.function`, with gradients.

    It runs as a Python function inside the graph, so it works neither with XLA nor in a SavedModel.

    Args:
        arrays: The arguments of `cellerate.kernels.lstm.spec` that are there, by name: x, or ids and embeddings;
            kernel, recurrent_kernel, bias, h0, c0, mask, dropout, recurrent_dropout. h0 is required.
        options: Activations, direction and masked outputs.
        return_sequences: Whether to return all outputs or only the last.
        training: Whether to keep what gradients need; otherwise gradients cost another forward pass.

    Returns:
        outputs (B, T, H) or (B, H), h_T and c_T (B, H), of the type of h0. First derivatives in reverse mode
        are defined for x or embeddings, kernel, recurrent_kernel, bias, h0 and c0.
    """
    names = list(arrays)
    wanted = [n for n in ("x", "embeddings", "kernel", "recurrent_kernel", "bias", "h0", "c0") if n in arrays]
    like = arrays["x"] if "x" in arrays else arrays["ids"]
    batch, steps, units = like.shape[0], like.shape[1], arrays["recurrent_kernel"].shape[0]
    dtype = arrays["h0"].dtype
    shapes = [(batch, steps, units) if return_sequences else (batch, units), (batch, units), (batch, units)]

    def compute(values: Sequence[np.ndarray], keep: bool) -> cpu.Forward:
        named = dict(zip(names, values, strict=True))
        given, dtype = cpu.Arguments(**named), named["h0"].dtype
        return cpu.forward(given, options, return_sequences=return_sequences, keep=keep, dtype=dtype)

    def forward(*values: np.ndarray) -> tuple[np.ndarray, ...]:
        done = compute(values, keep=training)
        results = (done.outputs, done.h_T, done.c_T)
        return results if done.reserve is None else (*results, done.reserve)

    def backward(*values: np.ndarray) -> list[np.ndarray]:
        given = cpu.Arguments(**dict(zip(names, values, strict=False)))
        *kept, d_outputs, d_h_T, d_c_T = values[len(names) :]
        done = (
            cpu.Forward(kept[0], d_h_T, d_c_T, kept[1]) if kept else compute(values[: len(names)], keep=True)
        )
        gradients = cpu.backward(
            given,
            done,
            options,
            d_outputs=d_outputs,
            d_h_T=d_h_T,
            d_c_T=d_c_T,
            return_sequences=return_sequences,
        )
        return [gradients[name] for name in wanted]

    def run(*tensors: Any) -> tuple[tuple[Any, Any, Any], Callable[..., list[Any]]]:
        types = [dtype, dtype, dtype, *[tf.uint8] * training]
        found = tf.numpy_function(forward, tensors, types, stateful=False)
        results, kept = found[:3], [found[0], *found[3:]] if training else []
        for result, shape in zip(results, shapes, strict=True):
            result.set_shape(shape)

        def gradients(*cotangents: Any) -> list[Any]:
            inputs = [*tensors, *kept, *cotangents]
            found = dict(zip(wanted, tf.custom_gradient(differentiate)(*inputs), strict=True))
            for name, gradient in found.items():
                gradient.set_shape(arrays[name].shape)
            return [found.get(name) for name in names]

        def differentiate(*inputs: Any) -> tuple[list[Any], Callable[..., None]]:
            types = [arrays[name].dtype for name in wanted]
            return tf.numpy_function(backward, inputs, types, stateful=False), _differentiate_twice

        return tuple(results), gradients

    return tf.custom_gradient(run)(*arrays.values())


def _differentiate_twice(*_: Any) -> None:
    # Without this, TensorFlow would leave the second derivatives out of the gradient.
    raise NotImplementedError(
        "the native LSTM has first derivatives only; for second ones take Keras's code: cellerate.restore(model)"
    )


def dense(x: Any, kernel: Any, bias: Any | None) -> Any:
    """A dense layer on the native core, with gradients: x (M, K), kernel (K, N), bias (N,) or None → (M, N)."""
    dtype = x.dtype

    def run(*tensors: Any) -> tuple[Any, Callable[..., list[Any]]]:
        y = tf.numpy_function(native_dense.dense, tensors, dtype, stateful=False)
        y.set_shape((x.shape[0], kernel.shape[1]))

        def gradients(d_y: Any) -> list[Any]:
            found = tf.custom_gradient(differentiate)(*tensors, d_y)
            for gradient, tensor in zip(found, tensors, strict=True):
                gradient.set_shape(tensor.shape)
            return found

        return y, gradients

    def differentiate(*inputs: Any) -> tuple[list[Any], Callable[..., None]]:
        types = [each.dtype for each in inputs[:-1]]
        return tf.numpy_function(backward, inputs, types, stateful=False), _differentiate_twice

    def backward(*values: np.ndarray) -> list[np.ndarray]:
        given_bias = values[2] if bias is not None else None
        found = native_dense.dense_backward(values[0], values[1], given_bias, values[-1])
        return [each for each in found if each is not None]

    return tf.custom_gradient(run)(*[each for each in (x, kernel, bias) if each is not None])
