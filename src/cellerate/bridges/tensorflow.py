"""The part of TensorFlow that Cellerate needs: finding a GPU, compiling a step, datasets, operations.

Only this module imports TensorFlow; it is imported only where TensorFlow is asked for.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from types import FrameType
from typing import Any

import numpy as np
import tensorflow as tf
from tensorflow.python.ops.control_flow_util import GraphOrParentsInXlaContext
from tensorflow.python.saved_model.save_context import in_save_context

from cellerate.kernels import operation as on_core
from cellerate.kernels.operation import Codes, CoreOperation

# The code of the method that traces a function and does not run it.
_GET_CONCRETE_FUNCTION = type(tf.function(lambda: None)).get_concrete_function.__code__
# XLA names the operation that it cannot compile, and says nothing else that would help.
_NODE = "cellerate_core.restore_the_model_or_make_a_new_tf.function"
_NOT_SAVEABLE = (
    "it was traced to run here, on Cellerate's kernels, which a SavedModel cannot hold. Make a new tf.function, do not "
    "call it, and store that; or call cellerate.restore(model) before."
)
Step = Callable[[tuple[Any, ...], np.ndarray], tuple[tuple[Any, ...], np.ndarray | None]]


def gpu_available() -> bool:
    """True if TensorFlow computes on a GPU here: the test Keras's cuDNN path makes."""
    return bool(tf.config.list_logical_devices("GPU"))


def peak_gpu_memory_bytes() -> int | None:
    """The most memory that tensors of this process have taken on its GPU, in bytes; None without one."""
    return int(tf.config.experimental.get_memory_info("GPU:0")["peak"]) if gpu_available() else None


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
    """One epoch of a `cellerate.data.arrays.BatchSource` as a dataset, batches in order.

    Args:
        source: The batches. If its `fixed_shapes` is true, the tensors have static shapes, but for the rows of a short
            last batch; otherwise only the batch axis is static.
        epoch: Which epoch.
        cache: Keep the batches in memory after the first pass.

    Returns:
        A dataset with the structure of `source.batch` and known length. Several threads request batches at once.
    """
    sample = source.batch(epoch, 0)
    arrays = tf.nest.flatten(sample)
    fixed = getattr(source, "fixed_shapes", False)
    short = fixed and len(tf.nest.flatten(source.batch(epoch, len(source) - 1))[0]) < len(arrays[0])
    shapes = [
        (None if short else len(array), *(array.shape[1:] if fixed else [None] * (array.ndim - 1)))
        for array in arrays
    ]
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


def eagerly() -> Any:
    """A context in which variables change at once, also while TensorFlow traces a function."""
    return tf.init_scope()


def one_element(element: Any, spec: Any) -> Any:
    """An iterator over one element of a data set, with the shapes that the set promises, which may be unknown.

    Args:
        element: The element, with None in the place of an empty optional.
        spec: The description of the set's elements.
    """

    def as_promised(value: Any, promised: Any) -> Any:
        is_empty = value is None and isinstance(promised, tf.OptionalSpec)
        return tf.experimental.Optional.empty(None) if is_empty else value

    given = tf.nest.map_structure(as_promised, element, spec)
    alone = tf.data.experimental.to_variant(tf.data.Dataset.from_tensors(given))
    return iter(tf.data.experimental.from_variant(alone, spec))


def read_dense(iterator: Any) -> Callable[[], list[Any]] | None:
    """A function that reads the tensors of the next element of a data set, and holds no iterator.

    It raises `StopIteration` at the end.

    Returns:
        The function; None where elements are not dense tensors alone, or the end of a data set is an error elsewhere.
    """
    specs = tf.nest.flatten(iterator.element_spec)
    resource = getattr(iterator, "_iterator_resource", None)
    dense = all(type(spec) is tf.TensorSpec for spec in specs)
    if resource is None or not dense or not tf.config.experimental.get_synchronous_execution():
        return None
    types, shapes = [spec.dtype for spec in specs], [spec.shape for spec in specs]

    def read() -> list[Any]:
        try:
            tensors: list[Any] = tf.raw_ops.IteratorGetNext(
                iterator=resource, output_types=types, output_shapes=shapes
            )
        except tf.errors.OutOfRangeError:
            raise StopIteration from None
        return tensors

    return read


def compiled(function: Callable[..., Any]) -> Callable[..., Any]:
    """Compiles a pure function of arrays, once for each of their shapes."""
    made: Callable[..., Any] = tf.function(function, autograph=False, reduce_retracing=True)
    return made


def in_place_changes(tensor: Any) -> int:
    """The number of times a tensor was changed in place: TensorFlow's tensors never are."""
    return 0


def traced_for() -> str | None:
    """The reason why the graph being traced cannot call the native core; None if it can.

    The core is called through Python. A function that XLA compiles cannot do that, nor can one in a file. What
    `get_concrete_function` returns counts as one for a file: `TFLiteConverter` and the signatures of a SavedModel ask
    for it, and a caller who only runs a function does not.
    """
    if not tf.inside_function():
        return None
    if GraphOrParentsInXlaContext(tf.compat.v1.get_default_graph()):
        return "XLA compiles the function that calls it"
    if in_save_context() or _traced_for_its_graph():
        return "the function that calls it is traced for a SavedModel or LiteRT (get_concrete_function)"
    return None


def _traced_for_its_graph() -> bool:
    frame: FrameType | None = sys._getframe()
    while frame is not None and frame.f_code is not _GET_CONCRETE_FUNCTION:
        frame = frame.f_back
    asking = None if frame is None else frame.f_back
    # `compile_step` runs what it gets.
    return asking is not None and asking.f_globals is not globals()


def run(
    operation: CoreOperation, arrays: dict[str, Any], codes: Codes = (), *, training: bool = True
) -> tuple[Any, ...]:
    """An operation on the native core, eagerly or in a `tf.function`, with gradients.

    It runs as a Python function inside the graph, so it works neither with XLA nor in a SavedModel: see `traced_for`.
    A function that calls it and is traced to be run refuses to be stored.

    Args:
        operation: The kernel to run.
        arrays: Its arguments that are there, by name.
        codes: Its options.
        training: Whether to keep what gradients need; otherwise gradients cost another forward pass.

    Returns:
        Its results. First derivatives in reverse mode are defined for its differentiable arguments.
    """
    names, read = list(arrays), operation.read(arrays)
    wanted = operation.with_gradients(arrays)
    dtype = operation.like(arrays).dtype
    shapes = operation.shapes(arrays, codes)
    keep = training and operation.sizes is not None
    kept_names = operation.kept if training else ()

    def forward(*values: np.ndarray) -> list[np.ndarray]:
        given = dict(zip(read, values, strict=True))
        return list(on_core.forward(operation, given, codes, keep=keep).values())

    def backward(*values: np.ndarray) -> list[np.ndarray]:
        given, rest = dict(zip(names, values, strict=False)), values[len(names) :]
        done = dict(zip(kept_names, rest, strict=False))
        if operation.kept and not done:
            done = on_core.forward(operation, {name: given[name] for name in read}, codes, keep=True)
        cotangents = dict(zip(operation.results, rest[len(kept_names) :], strict=True))
        gradients = on_core.backward(operation, given, done, cotangents, codes)
        return [gradients[name] for name in wanted]

    def compute_all(*tensors: Any) -> tuple[tuple[Any, ...], Callable[..., list[Any]]]:
        types = [*[dtype] * len(operation.results), *[tf.uint8] * keep]
        scope = tf.get_current_name_scope()
        found = _called(
            forward, [one for name, one in zip(names, tensors, strict=True) if name in read], types
        )
        done = dict(zip([*operation.results, *["reserve"] * keep], found, strict=True))
        for name, shape in shapes.items():
            done[name].set_shape(shape)

        def gradients(*cotangents: Any) -> list[Any]:
            inputs = [*tensors, *[done[name] for name in kept_names], *cotangents]
            # TensorFlow names its own gradients so; without, a profile could not tell whose this is.
            with tf.name_scope(f"gradient_tape/{scope}/"):
                found = dict(zip(wanted, tf.custom_gradient(differentiate)(*inputs), strict=True))
            for name, gradient in found.items():
                gradient.set_shape(arrays[name].shape)
            return [found.get(name) for name in names]

        def differentiate(*inputs: Any) -> tuple[list[Any], Callable[..., None]]:
            types = [arrays[name].dtype for name in wanted]
            return _called(backward, inputs, types), _differentiate_twice

        return tuple(done[name] for name in operation.results), gradients

    return tf.custom_gradient(compute_all)(*arrays.values())


def _called(
    function: Callable[..., list[np.ndarray]], inputs: Sequence[Any], types: Sequence[Any]
) -> list[Any]:
    """The results of a Python function on tensors, always as a list: TensorFlow unpacks a single result when eager."""
    _refuse_to_be_stored()
    # LiteRT quotes this line where it cannot convert a function that was traced to be run.
    found = tf.numpy_function(function, inputs, types, False, _NODE)  # cellerate.restore(model) first
    return list(found) if isinstance(found, list | tuple) else [found]


def _refuse_to_be_stored() -> None:
    """Makes `tf.saved_model.save` refuse the functions that are being traced; it would write what cannot be run."""
    graph = tf.compat.v1.get_default_graph() if tf.inside_function() else None
    while graph is not None:
        if hasattr(graph, "mark_as_unsaveable"):
            graph.mark_as_unsaveable(_NOT_SAVEABLE)
        graph = getattr(graph, "outer_graph", None)


def _differentiate_twice(*_: Any) -> None:
    # Without this, TensorFlow would leave the second derivatives out of the gradient.
    raise NotImplementedError(
        "Cellerate's layers have first derivatives only; for second ones take Keras's code: cellerate.restore(model)"
    )
