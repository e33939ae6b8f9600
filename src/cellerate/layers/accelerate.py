"""Puts Cellerate's kernels into the LSTM layers of a Keras model, and takes them out again.

Only this module changes layers, each by one attribute of the layer object. An LSTM gets another `inner_loop`, the
function that Keras calls with checked inputs, states and masks. An Embedding gets another `call`, from which an LSTM
right after it learns the rows; a Dense layer gets one that runs on the core. Class, weights and configuration stay the
same, so saving, loading and cloning the model work as before.
"""

from __future__ import annotations

import contextlib
import functools
import inspect
import weakref
from collections.abc import Callable, Iterator
from typing import Any, TypeVar

import keras
from keras import layers

from cellerate.errors import BackendError, ModelError
from cellerate.keras_graph import keras2
from cellerate.layers import cuda_graph_step, cudnn_choice, fused, fused_dense, table
from cellerate.layers.engine import seam
from cellerate.machine.environment import keep_freed_memory
from cellerate.messages import Message, argument
from cellerate.settings import check_choice

IMPLEMENTATIONS = ("auto", "cellerate-cpu", "cellerate-cuda", "keras")
ENGINES = ("auto", "require", "off")
Model = TypeVar("Model", bound=keras.Layer)
# The attributes of a model's compiled functions, and the method that a Bidirectional calls before it uses cuDNN.
_COMPILED = ("train_function", "test_function", "predict_function")
_MAKERS = ("make_train_function", "make_test_function", "make_predict_function")
_FUSED, _BUILD = "_can_attempt_fused_lstm", "_maybe_symbolic_build"
# Layers and models that TensorFlow compiled with XLA, or could have, before they got kernels that XLA cannot compile.
_left_xla: weakref.WeakSet[keras.Layer] = weakref.WeakSet()
# The methods that `enable` replaced, by class and name.
_originals: dict[tuple[type, str], Callable[..., Any]] = {}


def accelerate(
    model: Model, implementation: str = "auto", *, engine: str = "auto", sum_embedding_gradients: bool = False
) -> Model:
    """Makes the LSTM layers of a model run on Cellerate's own kernels.

    The model stays the same object with the same weights; `fit`, `predict` and saving work as before, and a
    saved model loads without Cellerate. Layers that cannot be fused keep Keras's own code; `explain` says
    which and why.

    Args:
        model: Any Keras model or layer; submodels and wrappers are looked into.
        implementation: "auto" takes the fastest that can run here, and leaves a layer to Keras if none can;
            "cellerate-cpu" demands the native core for every recurrent layer, "cellerate-cuda" the kernels for
            NVIDIA GPUs; "keras" is `restore`.
        engine: "auto" runs each training step in one native call if the engine supports the model's layers, loss,
            optimizer and metrics; "require" refuses to train any other model; "off" leaves training steps to Keras.
            `explain` gives the reasons against the engine.
        sum_embedding_gradients: For TensorFlow, where Keras passes an Embedding's gradient to the optimizer row by row,
            and Adam and clipnorm treat a row that a batch reads several times as several rows. False keeps this
            behaviour of stock Keras; True sums such rows, as on the other backends. A step is then faster, and rows
            that start small (as Keras's own do) grow more slowly. With True, the output of the Embedding has no
            gradient of its own on torch and TensorFlow.

    From then on the process keeps freed memory (`machine.environment.keep_freed_memory`), because each step needs the
    same arrays again, and clearing them in the operating system would cost more than the arithmetic.

    Returns:
        `model` itself.

    Raises:
        ConfigError: `implementation` or `engine` is unknown.
        BackendError: A named implementation is not installed.
        ModelError: `model` is not a Keras layer, or a named implementation cannot run one of its recurrent layers, or
            finds none.

    Example:
        >>> model = keras.Sequential([keras.Input((None, 8)), keras.layers.LSTM(16)])
        >>> _ = accelerate(model)
    """
    check_choice("implementation", implementation, IMPLEMENTATIONS)
    check_choice("engine", engine, ENGINES)
    if implementation == "keras":
        return restore(model)
    strict = implementation != "auto"
    found = list(_layers(model))
    if strict:
        _demand(implementation)
        table.check_all_fit(model, implementation)
    restore(model)
    for layer in found:
        _accelerate_layer(layer, implementation, sum_embedding_gradients)
    _accelerate_around(model, engine, sum_embedding_gradients)
    if isinstance(model, keras.Model):
        model.export = functools.partial(_export, model)
        if _compiled_by_xla(model):
            # Setting it makes Keras ask again whether all layers support XLA, and warn and turn it off if not.
            # TensorFlow ignores setting the value it already has, so it is set to another value first.
            model.jit_compile = False
            model.jit_compile = True
            if not model.jit_compile:
                _left_xla.add(model)
    _renew_compiled(model)
    return model


def restore(model: Model) -> Model:
    """Gives the layers of a model Keras's own code back; the opposite of `accelerate`.

    Raises:
        ModelError: `model` is not a Keras layer.
    """
    replaced = list(_replaced(model))
    for layer, name in replaced:
        delattr(layer, name)
    # Models last, because they ask their layers.
    for layer in sorted([layer for layer, _ in replaced if layer in _left_xla], key=_is_model):
        _left_xla.discard(layer)
        setattr(layer, "jit_compile" if _is_model(layer) else "supports_jit", True)
    _renew_compiled(model)
    return model


@contextlib.contextmanager
def as_found(model: keras.Layer) -> Iterator[None]:
    """Undoes, at the end of the `with`, any acceleration or restoration of the model inside it."""
    taken = [(layer, name, vars(layer)[name], layer in _left_xla) for layer, name in _replaced(model)]
    compiled = {name: getattr(model, name, None) for name in _COMPILED}
    try:
        yield
    finally:
        restore(model)
        for layer, name, replacement, left_xla in taken:
            setattr(layer, name, replacement)
            if left_xla:
                _leave_xla(layer)
        forget_compiled(model)
        # A `fit` that is under way goes on with the functions it had before.
        for name, function in compiled.items():
            if function is not None:
                setattr(model, name, function)


@contextlib.contextmanager
def restored(model: keras.Layer) -> Iterator[None]:
    """Gives the layers of a model Keras's own code within a `with`, as an export needs."""
    with as_found(model):
        restore(model)
        yield


def enable(
    implementation: str = "auto", *, engine: str = "auto", sum_embedding_gradients: bool = False
) -> None:
    """Accelerates every LSTM that is created, loaded or cloned from now on; `disable` ends this.

    The rest of a model that `accelerate` changes (Dense layers and the training step) changes when it is compiled.

    Args:
        implementation: As in `accelerate`.
        engine: As in `accelerate`.
        sum_embedding_gradients: As in `accelerate`.

    Raises:
        ConfigError: `implementation` or `engine` is unknown.
        BackendError: The named implementation is not installed.
    """
    check_choice("implementation", implementation, IMPLEMENTATIONS)
    check_choice("engine", engine, ENGINES)
    disable()
    if implementation == "keras":
        return
    if implementation != "auto":
        _demand(implementation)
    keep_freed_memory()
    for layer_class in (*table.LAYERS, layers.Embedding, layers.Bidirectional):
        original = layer_class.__init__

        @functools.wraps(original)
        def create(self: Any, *args: Any, _original: Any = original, **keywords: Any) -> None:
            _original(self, *args, **keywords)
            _accelerate_layer(self, implementation, sum_embedding_gradients)

        _replace(layer_class, "__init__", create)
    compiled = keras.Model.compile

    @functools.wraps(compiled)
    def compile_(self: keras.Model, *args: Any, **keywords: Any) -> Any:
        # Only now is there a model around the layers.
        _accelerate_around(self, engine, sum_embedding_gradients)
        return compiled(self, *args, **keywords)

    # Where it is defined: Keras compiles no loaded model whose class has a `compile` of its own.
    _replace(next(one for one in keras.Model.__mro__ if "compile" in vars(one)), "compile", compile_)
    _guard_exports()


def disable() -> None:
    """Ends `enable`. Layers created in the meantime stay accelerated until `restore`."""
    for owner, name in list(_originals):
        setattr(owner, name, _originals.pop((owner, name)))


def is_accelerated(layer: Any) -> bool:
    """True if `accelerate` has put a kernel into this LSTM."""
    return implementation_of(layer) is not None


def implementation_of(layer: Any) -> str | None:
    """The implementation that `accelerate` has put into this LSTM; None for Keras's own."""
    bound = _bound(layer)
    return None if bound is None else bound[0]


def is_strict(layer: Any) -> bool:
    """True if the implementation of an accelerated LSTM was named, so that no other may run."""
    bound = _bound(layer)
    return bound is not None and bound[1]


def _bound(layer: Any) -> tuple[str, bool] | None:
    """The implementation that `_accelerate_layer` put into a layer, and True if it was named."""
    loop = vars(layer).get("inner_loop")
    if not isinstance(loop, functools.partial) or loop.func is not _inner_loop:
        return None
    _, implementation, strict = loop.args
    return implementation, strict


def keeps_from_cudnn(layer: layers.Bidirectional) -> bool:
    """True if `accelerate` makes a wrapper call its two layers, where Keras would call cuDNN for both."""
    return _FUSED in vars(layer)


def _layers(model: Any) -> Iterator[keras.Layer]:
    """The LSTM and Embedding layers of a model, then the Bidirectional wrappers, each once."""
    _check_layer(model)
    found = list(model._flatten_layers(include_self=True))
    yield from (layer for layer in found if isinstance(layer, (*table.LAYERS, layers.Embedding)))
    yield from (layer for layer in found if isinstance(layer, layers.Bidirectional))


def _replaced(model: Any) -> Iterator[tuple[keras.Layer, str]]:
    """The attributes of a model's layers that are Cellerate's: each layer and the attribute's name."""
    _check_layer(model)
    for layer in model._flatten_layers(include_self=True):
        for name in ("inner_loop", "call", "export", *_MAKERS, _FUSED, _BUILD):
            found = vars(layer).get(name)
            if isinstance(found, functools.partial) and found.func in _OURS:
                yield layer, name


def _check_layer(model: Any) -> None:
    if not isinstance(model, keras.Layer):
        keras2.refuse(model)
        raise ModelError(
            f"expected a Keras model or layer, got {type(model).__name__}. Load a saved one first, with "
            "keras.saving.load_model."
        )


def _demand(implementation: str) -> None:
    """Raises `BackendError` if a named implementation cannot run here."""
    reason = fused.why_unavailable(implementation)
    if reason is not None:
        raise BackendError(f"{implementation} cannot run here: {reason}.")


def _refusal(name: str, implementation: str, reason: str) -> str:
    return Message(
        f"layer {name!r} cannot run on {implementation}: {reason}. With {argument('implementation', 'auto')} such a "
        "layer stays with Keras."
    )


def _replace(owner: type, name: str, method: Any) -> None:
    """Replaces a method by one that wraps it, until `disable`."""
    original = getattr(owner, name)
    # Keras reads the arguments of a layer's constructor without following `__wrapped__`.
    method.__signature__ = inspect.signature(original)
    _originals[owner, name] = original
    setattr(owner, name, method)


def _accelerate_around(model: keras.Layer, engine: str, summed: bool) -> None:
    """Accelerates the rest of a model: Dense layers on a CPU, and the training step, beside an accelerated LSTM.

    An engine that is required takes the training step of any model, if only to refuse it.
    """
    found = list(model._flatten_layers(include_self=True))
    implementations = {implementation_of(layer) for layer in found}
    on_core = "cellerate-cpu" in implementations
    if on_core:
        keep_freed_memory()
        for layer in found:
            if isinstance(layer, layers.Dense):
                _accelerate_dense(layer)
    if isinstance(model, keras.Model) and (engine == "require" or (on_core and engine != "off")):
        model.make_train_function = functools.partial(seam.make_train_function, model, engine, summed)
        model.make_test_function = functools.partial(seam.make_test_function, model)
        model.make_predict_function = functools.partial(seam.make_predict_function, model)
        if hasattr(model, _BUILD):
            setattr(model, _BUILD, functools.partial(seam.build_symbolically, model))
    captures = "cellerate-cuda" in implementations and hasattr(fused.bridge(), "capture_step")
    if captures and engine != "require" and isinstance(model, keras.Model):
        model.make_train_function = functools.partial(cuda_graph_step.make_train_function, model)


def _accelerate_layer(layer: keras.Layer, wanted: str, sum_embedding_gradients: bool) -> None:
    if isinstance(layer, layers.Bidirectional):
        _keep_from_cudnn(layer)
        return
    if isinstance(layer, layers.Embedding):
        if type(layer).call is layers.Embedding.call and "call" not in vars(layer):
            original = functools.partial(layers.Embedding.call, layer)
            layer.call = functools.partial(fused.look_up, layer, original, sum_embedding_gradients)
        return
    strict = wanted != "auto"
    implementation = wanted if strict else fused.implementation_here()
    reason = table.unfit(layer, implementation, named=strict)
    if reason is None:
        layer.inner_loop = functools.partial(_inner_loop, layer, implementation, strict)
        if keras.backend.backend() == "tensorflow" and layer.supports_jit:
            _leave_xla(layer)
    elif strict:
        raise ModelError(_refusal(layer.name, implementation, reason))


def _keep_from_cudnn(layer: layers.Bidirectional) -> None:
    """Makes a wrapper call its two layers, where Keras would hand the work of both to cuDNN at once.

    Keras asks a method of the wrapper first; a version of Keras without this method never hands over both.
    """
    inner = (layer.forward_layer, layer.backward_layer)
    if all(implementation_of(one) == "cellerate-cuda" for one in inner) and hasattr(layer, _FUSED):
        setattr(layer, _FUSED, functools.partial(_never))


def _never(*_: Any, **__: Any) -> bool:
    return False


def _accelerate_dense(layer: layers.Dense) -> None:
    # A replacement that is not Cellerate's stays.
    if fused_dense.fits(layer) and "call" not in vars(layer):
        layer.call = functools.partial(fused_dense.run, layer, functools.partial(layers.Dense.call, layer))
        if keras.backend.backend() == "tensorflow" and layer.supports_jit:
            _leave_xla(layer)


def _export(model: keras.Model, *args: Any, **keywords: Any) -> Any:
    """`Model.export` with Keras's own code, because an export must run without Cellerate."""
    with restored(model):
        return type(model).export(model, *args, **keywords)


@functools.cache
def _guard_exports() -> None:
    """Makes every model export with Keras's own code, since a layer that is just created has no model to change yet.

    The change stays for good, because accelerated layers outlive `disable`. A model without any exports as before.
    """
    original = keras.Model.export

    @functools.wraps(original)
    def export(self: keras.Model, *args: Any, **keywords: Any) -> Any:
        with restored(self):
            return original(self, *args, **keywords)

    keras.Model.export = export


def _inner_loop(
    layer: layers.LSTM,
    implementation: str,
    strict: bool,
    sequences: Any,
    initial_state: Any,
    mask: Any = None,
    training: bool | None = False,
) -> tuple[Any, Any, list[Any]]:
    """Stands in for `LSTM.inner_loop`; the first three are bound by a partial."""
    if isinstance(mask, list | tuple):
        mask = mask[0]
    reason = fused.unfit_call(layer, sequences, mask)
    contested = reason is None and implementation == "cellerate-cuda" and not strict
    if contested and cudnn_choice.cudnn_is_faster(layer, sequences, mask, training):
        reason = "cuDNN is faster"
    if reason is None and implementation == "cellerate-cpu" and not strict:
        reason = fused.too_short(layer, sequences.shape[1], training=bool(training))
    if reason is None:
        return table.kernels_of(layer).run(layer, implementation, sequences, initial_state, mask, training)
    if strict:
        raise ModelError(_refusal(layer.name, implementation, reason))
    return type(layer).inner_loop(layer, sequences, initial_state, mask, training)


def _is_model(layer: keras.Layer) -> bool:
    return isinstance(layer, keras.Model)


def _compiled_by_xla(model: keras.Model) -> bool:
    return keras.backend.backend() == "tensorflow" and model.compiled and bool(model.jit_compile)


def _leave_xla(layer: keras.Layer) -> None:
    _left_xla.add(layer)
    setattr(layer, "jit_compile" if _is_model(layer) else "supports_jit", False)


def forget_compiled(model: Any) -> None:
    """Makes Keras trace the model again at its next call if it has traced it already."""
    for name in _COMPILED:
        if getattr(model, name, None) is not None:
            setattr(model, name, None)


def _renew_compiled(model: Any) -> None:
    """Makes the model's compiled functions again, because a callback may call this while `fit` runs them."""
    makers = [
        getattr(model, make)
        for name, make in zip(_COMPILED, _MAKERS, strict=True)
        if getattr(model, name, None) is not None
    ]
    if makers and hasattr(model, "jax_state_sync"):
        # On JAX the values are outside the model during `fit`, in a form that only the function made before reads.
        model.jax_state_sync()
    forget_compiled(model)
    for make in makers:
        make()


# The functions that `accelerate` may put in place of Keras's own.
_OURS = (
    _inner_loop,
    fused.look_up,
    fused_dense.run,
    _export,
    cuda_graph_step.make_train_function,
    seam.make_train_function,
    seam.make_test_function,
    seam.make_predict_function,
    seam.build_symbolically,
    _never,
)
