"""Puts the engine into a model's training: `fit` runs the function that `make_train_function` makes.

Keras trains the whole model if the engine does not support a part of it, and a whole batch if its shapes do not fit.
"""

from __future__ import annotations

import functools
import inspect
import itertools
import operator
import weakref
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import keras

from cellerate.errors import ModelError
from cellerate.kernels import native
from cellerate.layers import fused
from cellerate.layers.engine.arrays import take_over
from cellerate.layers.engine.batches import Misfit
from cellerate.layers.engine.datasets import BatchReader, reader_of
from cellerate.layers.engine.lending import Lender, Values
from cellerate.layers.engine.parts import StepParts, known_reasons, parts_of
from cellerate.layers.engine.step import EngineStep

WHOLE_STEPS = "whole steps in one native call"
KERASS_OWN = "Keras's own, because the engine does not support the model:"
_HELD = "_cellerate_engine"
# The lender that holds the values of each model's variables during training.
_lenders: weakref.WeakKeyDictionary[keras.Model, Lender] = weakref.WeakKeyDictionary()


def make_train_function(model: keras.Model, engine: str, summed: bool, force: bool = False) -> None:
    """Stands in for `Model.make_train_function`; the first three are bound by a partial.

    Args:
        model: The model.
        engine: "auto", or "require" to refuse a model that the engine does not support.
        summed: Whether the gradients of repeated rows of an Embedding are summed on TensorFlow.
        force: Whether to make an existing function again.
    """
    is_new = model.train_function is None or force
    reasons = why_not(model) if is_new else ()
    if reasons and engine == "require":
        # Before Keras makes its own function, which the next `fit` would run.
        raise ModelError(refusal(model, reasons))
    type(model).make_train_function(model, force)
    if is_new and not reasons:
        own = model.train_function
        model.train_function = _MAKERS[keras.backend.backend()](_Stepper(model, own, engine, summed))


def make_test_function(model: keras.Model, force: bool = False) -> None:
    """Stands in for `Model.make_test_function`; Keras evaluates a model that the engine does not support."""
    _give_back(model)
    is_new = model.test_function is None or force
    type(model).make_test_function(model, force)
    if is_new and not why_not(model, _TEST_METHODS):
        model.test_function = _MAKERS[keras.backend.backend()](
            _Stepper(model, model.test_function, "auto", None)
        )


def make_predict_function(model: keras.Model, force: bool = False) -> Any:
    """Stands in for `Model.make_predict_function`; gives the variables their values first."""
    _give_back(model)
    return type(model).make_predict_function(model, force)


def build_symbolically(model: keras.Model, iterator: Any = None, data_batch: Any = None) -> None:
    """Stands in for `Model._maybe_symbolic_build` of TensorFlow, to which `fit` and `evaluate` show their batches."""
    type(model)._maybe_symbolic_build(model, iterator, data_batch)
    if iterator is not None and not why_not(model):
        take_over(iterator, functools.partial(_is_on_engine, model))


def _is_on_engine(model: keras.Model) -> bool | None:
    """True if the engine runs the steps of a model that have begun; None before the first."""
    steppers = [getattr(made, _HELD, None) for made in (model.train_function, model.test_function)]
    known = [one for one in steppers if one is not None and one.reasons is not None]
    return all(one.step is not None for one in known) if known else None


def _give_back(model: keras.Model) -> None:
    if (lender := _lenders.get(model)) is not None:
        lender.give_back()


@functools.cache
def _guard_models() -> None:
    """Makes every model on TensorFlow see current values in layers that it shares with a model in training.

    The functions that these methods make there read and write variables without asking Keras. The change stays for
    good, because any model may share a layer; while no model trains, it does nothing.
    """
    if keras.backend.backend() != "tensorflow":
        return
    for name in ("make_train_function", "make_test_function", "make_predict_function"):
        owner = next(one for one in keras.Model.__mro__ if name in vars(one))
        setattr(owner, name, _after_giving_back(getattr(owner, name)))


def _after_giving_back(method: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(method)
    def make(self: keras.Model, *args: Any, **keywords: Any) -> Any:
        for lender in list(_lenders.values()):
            lender.give_back()
        return method(self, *args, **keywords)

    return make


def refusal(model: keras.Model, reasons: tuple[str, ...]) -> str:
    """The message for a model that must train on the engine and cannot."""
    lines = "\n".join(f"- {reason}" for reason in reasons)
    return f"model {model.name!r} cannot train on the engine:\n{lines}"


# Methods that change how a model trains or is evaluated if its class overrides them.
_SHARED_METHODS = ("compute_loss", "compute_metrics", "get_metrics_result", "reset_metrics")
_TRAIN_METHODS, _TEST_METHODS = ("train_step", *_SHARED_METHODS), ("test_step", *_SHARED_METHODS)


def why_not(model: keras.Model, methods: tuple[str, ...] = _TRAIN_METHODS) -> tuple[str, ...]:
    """The reasons against the engine that are known before the model's loss and optimizer are built.

    Args:
        model: The model.
        methods: The methods that must be Keras's.
    """
    unavailable = native.why_unavailable()
    if unavailable is not None:
        return (unavailable,)
    reasons = []
    if fused.bridge().gpu_available():
        reasons.append("the backend computes on a GPU")
    for name in methods:
        if getattr(type(model), name) is not getattr(keras.Model, name) or name in vars(model):
            reasons.append(f"its class has a {name} of its own")
    if model.run_eagerly:
        reasons.append("it runs eagerly")
    if getattr(model, "_distribute_strategy", None) is not None:
        reasons.append("a TensorFlow strategy distributes it")
    if keras.distribution.distribution() is not None:
        reasons.append("it is distributed")
    return tuple(reasons)


class _Stepper:
    """Runs each step of a model on the engine, or with Keras's own function.

    Args:
        model: The model.
        own: Keras's own function for a step.
        engine: As in `make_train_function`.
        summed: As in `make_train_function`; None for steps that evaluate the model.
    """

    def __init__(self, model: keras.Model, own: Callable[..., Any], engine: str, summed: bool | None) -> None:
        self.model, self.own, self._engine = model, own, engine
        self.training = summed is not None
        self._rows_apart = keras.backend.backend() == "tensorflow" and summed is False
        self.step: EngineStep | None = None
        self.reasons: tuple[str, ...] | None = None
        self._misfits = 0
        self._key: tuple[Any, ...] = ()
        self._settings: Callable[[], tuple[Any, ...]] = tuple

    def logs(self, data: Any, otherwise: Callable[[], Any], counts_rows: bool = True) -> Any:
        """Runs one step, and returns its logs.

        Args:
            data: The batch.
            otherwise: Runs Keras's own step, and returns its logs.
            counts_rows: As in `EngineStep.run`.
        """
        step = self._step_for(data)
        if step is not None and not step.lender.take():
            # Shared memory has moved, or a fixed variable has changed.
            self.reasons = None
            step = self._step_for(data)
        if step is None:
            _give_back(self.model)
            return otherwise()
        with step.lender.lock:
            logs = self._run(step, data, counts_rows)
        return otherwise() if logs is None else logs

    def _run(self, step: EngineStep, data: Any, counts_rows: bool) -> dict[str, Any] | None:
        """Runs a step on the engine, and returns its logs; None if Keras must take the batch."""
        if not step.lender.take():
            return None
        try:
            logs = step.run(data, training=self.training, counts_rows=counts_rows)
        except Misfit as misfit:
            step.lender.give_back()
            self._misfit(str(misfit))
            return None
        self._misfits = 0
        return logs

    def give_back(self) -> None:
        """Gives the variables their current values."""
        if self.step is not None:
            self.step.lender.give_back()

    def _step_for(self, data: Any) -> EngineStep | None:
        """The step on the engine; None if Keras must train the model."""
        settings = self._settings()
        if self.step is not None and self.step.lender.lent and self._key[:1] == (settings,):
            # Nothing has read or written a variable since the last step.
            return self.step
        key = (settings, *_trained_key(self.model))
        if self.reasons is not None and self._key == key:
            self._hold()
            return self.step
        self.give_back()
        self.step = None
        self._build(data)
        self._settings = _eager_settings(self.model)
        self._key = (self._settings(), *key[1:])
        parts = parts_of(self.model, rows_apart=self._rows_apart, training=self.training)
        if not isinstance(parts, StepParts):
            if self._engine == "require":
                # `reasons` stays None, so that every further step is refused, too.
                raise ModelError(refusal(self.model, parts))
            self.reasons = parts
            return None
        self.reasons = ()
        self.step = EngineStep(self.model, parts)
        self._hold()
        return self.step

    def _build(self, data: Any) -> None:
        """Builds the model's losses, metrics and optimizer; when evaluating on TensorFlow, not the optimizer."""
        optimizer = self.model.optimizer
        late = keras.backend.backend() == "tensorflow" and not self.training
        if not late or optimizer is None or optimizer.built:
            self.model._symbolic_build(data_batch=data)
            return
        # Keras builds the optimizer in the first training step, for the weights that are trainable then.
        optimizer.built = True
        try:
            self.model._symbolic_build(data_batch=data)
        finally:
            optimizer.built = False

    def _hold(self) -> None:
        """Takes the model's variables over from the step that held them."""
        if self.step is None or _lenders.get(self.model) is self.step.lender:
            return
        _give_back(self.model)
        _guard_models()
        _lenders[self.model] = self.step.lender

    def _misfit(self, reason: str) -> None:
        """Counts a batch that Keras took; after two in a row Keras takes all, as each attempt costs time."""
        self._misfits += 1
        if self._misfits > 1:
            self.step, self.reasons = None, (f"the last batches do not fit: {reason}",)


def reasons_of(model: keras.Model) -> tuple[str, ...] | None:
    """Why Keras trains a model itself; empty if the engine trains it; None before the first step decides."""
    trainer = getattr(model.train_function, _HELD, None)
    return None if trainer is None else trainer.reasons


def step_of(model: keras.Model) -> EngineStep | None:
    """The engine's step of a model; None before the first step, and for a model that Keras trains itself."""
    stepper = getattr(model.train_function, _HELD, None)
    return None if stepper is None else stepper.step


def described(model: Any) -> str | None:
    """A description of how an accelerated model trains; None for a model without the engine."""
    made = vars(model).get("make_train_function")
    if getattr(made, "func", None) is not make_train_function:
        return None
    reasons = why_not(model) or reasons_of(model)
    if reasons is None:
        reasons = known_reasons(model)
    if not reasons:
        return WHOLE_STEPS
    return "\n".join([KERASS_OWN, *(f"- {reason}" for reason in reasons)])


def _trained_key(model: keras.Model) -> tuple[Any, ...]:
    """A key that changes when Keras's own function would train other weights or use another optimizer."""
    if keras.backend.backend() == "tensorflow":
        # Keras's function keeps the weights and the optimizer of its first step until `compile`.
        return ()
    # JAX compiles again if the number of variables changes: a learning rate is a variable, a schedule is not.
    variables = 0 if model.optimizer is None else len(model.optimizer.variables)
    return (id(model.optimizer), variables, *map(id, model.trainable_variables))


def _eager_settings(model: keras.Model) -> Callable[[], tuple[Any, ...]]:
    """A function that reads in a few µs all settings of a model and its optimizer that each torch step reads.

    On the other backends Keras's function keeps the settings of its first step.
    """
    if keras.backend.backend() != "torch":
        return tuple
    owners = [vars(layer) for layer in model._flatten_layers(include_self=False)]
    if model.optimizer is not None:
        owners.append(vars(model.optimizer))
    weights = [vars(weight) for weight in model.weights]
    rules = [weight[name] for weight in weights for name in ("_regularizer", "_constraint")]
    owners += [vars(rule) for rule in rules if hasattr(rule, "__dict__")]
    plain = [*_getters(owners, _is_plain)]
    plain += [(operator.itemgetter("_trainable", "_constraint", "_regularizer"), one) for one in weights]
    plain += [(_of_parameter, one) for one in weights]
    objects = [*_getters(owners, _is_object)]

    def settings() -> tuple[Any, ...]:
        try:
            values = [get(owner) for get, owner in plain]
            return (id(model.optimizer), *values, *(tuple(map(id, get(owner))) for get, owner in objects))
        except KeyError:
            # A setting was deleted: return a value that equals no earlier one.
            return (object(),)

    return settings


_Attributes = dict[str, Any]


def _of_parameter(weight: _Attributes) -> tuple[Any, ...]:
    """The settings that torch keeps on a weight's parameter."""
    value = weight["_value"]
    return value.requires_grad, bool(value._backward_hooks), bool(value._post_accumulate_grad_hooks)


def _getters(
    owners: Sequence[_Attributes], wanted: Callable[[str, Any], bool]
) -> Iterator[tuple[Callable[[_Attributes], tuple[Any, ...]], _Attributes]]:
    """Yields, for each object with wanted attributes, the function that reads them as a tuple."""
    for owner in owners:
        names = [name for name, value in owner.items() if wanted(name, value)]
        if names:
            # For a single name, `itemgetter` would return the bare value.
            yield operator.itemgetter(*names, names[0]), owner


def _is_plain(name: str, value: Any) -> bool:
    return name[0] != "_" and isinstance(value, bool | int | float | str | None)


def _is_object(name: str, value: Any) -> bool:
    """True for a setting that is an object, which is compared by its identity."""
    return name in ("_learning_rate", "activation", "recurrent_activation") or inspect.isfunction(value)


def _batches(model: keras.Model, iterator: Iterator[Any]) -> Iterator[Any]:
    """The batches of one execution. Raises `StopIteration` if there is none, as Keras expects."""
    return itertools.chain([next(iterator)], itertools.islice(iterator, model.steps_per_execution - 1))


def _on_tensorflow(stepper: _Stepper) -> Callable[..., Any]:
    def step(iterator: Iterator[Any]) -> Any:
        if stepper.reasons and not isinstance(iterator, BatchReader):
            _give_back(stepper.model)
            return stepper.own(iterator)
        logs, read = None, reader_of(iterator)
        for data in _batches(stepper.model, read):
            logs = stepper.logs(data, functools.partial(_one, stepper.own, data, read.spec), read.knows_rows)
        if read.spec is None:
            # A single batch (`train_on_batch`): the caller may read the variables next.
            stepper.give_back()
        return logs

    setattr(step, _HELD, stepper)
    return step


def _one(own: Callable[..., Any], data: Any, spec: Any) -> Any:
    """Runs one of Keras's own steps, which Keras compiles for the elements of a data set."""
    return own(iter([data]) if spec is None else fused.bridge().one_element(data, spec))


def _on_torch(stepper: _Stepper) -> Callable[..., Any]:
    def step(data: list[Any]) -> Any:
        return stepper.logs(data[0], functools.partial(stepper.own, data))

    setattr(step, _HELD, stepper)
    return step


def _on_jax(stepper: _Stepper) -> Callable[..., Any]:
    """Makes the step for JAX, where Keras passes on all values as a state: here they are read only when needed."""
    model, groups = stepper.model, _GROUPS if stepper.training else _TEST_GROUPS
    passed: list[Any] = [None]

    def step(state: Any, iterator: Iterator[Any]) -> Any:
        logs = None
        for data in _batches(model, iterator):
            if passed[0] is None or state[0] is not passed[0][0]:
                passed[0] = None
                _put(model, groups, state)
            logs = stepper.logs(data, functools.partial(_one_on_jax, model, groups, stepper.own, data))
            if passed[0] is None:
                passed[0] = tuple(
                    Values(functools.partial(_values, model, group), len(group(model))) for group in groups
                )
            state = passed[0]
        return logs, state

    setattr(step, _HELD, stepper)
    return step


_Group = Callable[[Any], list[Any]]
# The variables of a JAX training state, in Keras's order.
_GROUPS: tuple[_Group, ...] = tuple(
    map(
        operator.attrgetter,
        ("trainable_variables", "non_trainable_variables", "optimizer.variables", "metrics_variables"),
    )
)
_TEST_GROUPS = (*_GROUPS[:2], _GROUPS[3])


def _values(model: keras.Model, group: _Group) -> list[Any]:
    return [variable.value for variable in group(model)]


def _put(model: keras.Model, groups: tuple[_Group, ...], state: Any) -> None:
    """Gives the variables of a model the values of a state: Keras removes them during an epoch."""
    for group, values in zip(groups, state, strict=True):
        for variable, value in zip(group(model), values, strict=True):
            variable._value = value


def _one_on_jax(model: keras.Model, groups: tuple[_Group, ...], own: Callable[..., Any], data: Any) -> Any:
    logs, state = own(tuple(_values(model, group) for group in groups), iter([data]))
    _put(model, groups, state)
    return logs


_MAKERS = {"tensorflow": _on_tensorflow, "torch": _on_torch, "jax": _on_jax}
