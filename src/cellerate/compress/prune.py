"""Structured pruning: removes whole units of LSTM layers, which leaves a smaller dense model.

`keras_graph.ties` finds the weights that belong to each unit. This module decides which units matter least
and trains between the rounds.
"""

from __future__ import annotations

import itertools
import time
from collections.abc import Iterator, Mapping
from typing import Any, Literal, get_args

import keras
import numpy as np

from cellerate.compress.control import ahead, check_pruning, pruning_rounds
from cellerate.compress.fitting import (
    Course,
    Data,
    Judge,
    Keeper,
    OnStep,
    checked_data,
    compile_with,
    endless,
    fine_tune,
    loss_of,
    loss_on,
)
from cellerate.compress.fixed_batch import rows_per_batch
from cellerate.compress.record import CompressionRecord
from cellerate.data.pipeline import without_lists
from cellerate.errors import ConfigError, ModelError, TrainingError
from cellerate.keras_graph.compiling import compile_as
from cellerate.keras_graph.ties import LayerUnits, units_of
from cellerate.keras_graph.ties_layers import Array, WeightAxis
from cellerate.layers.accelerate import accelerate, restore
from cellerate.models.rewrite import describe, layer_nodes, rebuild, same_layers
from cellerate.settings import check_choice, check_counts, check_number

_SALIENCY_BATCHES = 16
_JUDGED_BATCHES = 16
# A step so long that the change of a weight shows its gradient to full float32 precision.
_LONG_STEP = 1e4

Importance = Literal["both", "saliency", "magnitude"]
"""The ways to find the units that matter least."""

_Group = tuple[str, ...]
"""The paths of the layers that share units: a group's units are removed from all of them."""


def prune(
    model: keras.Model,
    data: Data,
    *,
    keep: float = 0.5,
    validation: Data | None = None,
    loss: Any = None,
    rounds: int = 1,
    steps: int = 1000,
    learning_rate: float = 4e-3,
    batch_size: int = 64,
    importance: Importance = "both",
    multiple_of: int = 8,
    judge: Judge | None = None,
    metric: str = "loss",
    seed: int = 0,
    on_step: OnStep | None = None,
) -> tuple[keras.Model, CompressionRecord]:
    """Removes the units that matter least from the LSTM layers of a model, and trains what is left.

    A unit consists of its columns in the gates of an LSTM's weights and its rows in the weights that read it.
    All readers of a unit must be known: Dense and LSTM layers, reached through layers that work on each
    feature alone. Layers whose units are added together, or that start from each other's states, lose the
    same units. Layers whose units reach anything else stay whole; one right before a head that is tied to an
    embedding is an example.

    Units are compared within a layer, and every layer keeps the same share. Importance is hardly comparable
    between layers, because its scale depends on where in the model a layer is.

    Before it is trained again, the pruned model computes what the unpruned one would if all weights that read
    the removed units were 0, with two exceptions: a LayerNormalization takes its mean over the remaining
    units, and a stateful layer starts with fresh states.

    Args:
        model: A built Functional or Sequential model. It is not changed.
        data: Data to find the least important units and to train with, as `fitting.Data`.
        keep: The share of each layer's units to keep, above 0 and below 1.
        validation: Data to judge on, four times in the last round; the best of the four models is kept. With
            None, models are judged on some batches of `data` and the last one is kept.
        loss: The Keras loss to train and judge with; None for the one the model was compiled with.
        rounds: In how many rounds to remove units: most of them early, by the cubic schedule, with training
            after each. For the same number of steps, one round is as good as several, and faster.
        steps: How many batches to train on in all; rounds share them equally, and the last takes the
            remainder too. More is better: a third of what the model itself was trained on is a good start.
        learning_rate: The learning rate at the start of training; it falls to 0.
        batch_size: Rows per batch, if data are arrays.
        importance: Which units to remove. "saliency": those whose removal changes the loss least, to first
            order; that is, with the smallest mean square, over batches, of the sum over time of h · dloss/dh.
            "magnitude": those with the smallest weights (L2 norm), without looking at data. "both": those
            with the lowest ranks in the two orders together, as either alone is much worse for some models.
        multiple_of: The number of units a layer keeps is rounded to a multiple of this, at least one multiple
            and never more than it has, because kernels are fastest at such sizes.
        judge: Returns how bad a model is, in place of the loss on `validation`. None for that loss.
        metric: The name of what `judge` returns.
        seed: The seed for the order of the batches.
        on_step: Called after each training step with how many are done, how many there are, and the loss. If
            it raises, the call ends.

    Returns:
        The smaller model, compiled as the given one was, and a record. Details of the record: "layers", for
        the path of each pruned LSTM the units it had ("units") and has now ("kept"); "kept_whole", for the
        path of each other LSTM the reason; "judged_on", what the quality was measured by: "judge",
        "validation" or "data"; "losses", one per step, at most 200 points.

    Raises:
        ConfigError: An argument is out of range, no unit would be removed, or there is no loss.
        DataError: There is no batch.
        ModelError: The model cannot be rebuilt, or none of its LSTM layers can be pruned; the message gives
            each reason.
        TrainingError: The loss is no longer a finite number.

    Source: Zhu & Gupta, "To prune, or not to prune", 2017, for the schedule; Molchanov et al., "Importance
    Estimation for Neural Network Pruning", 2019, for saliency.
    """
    started = time.perf_counter()
    settings: dict[str, Any] = {
        "keep": keep,
        "rounds": rounds,
        "steps": steps,
        "learning_rate": learning_rate,
        "batch_size": batch_size,
        "importance": importance,
        "multiple_of": multiple_of,
        "seed": seed,
    }
    check_number("keep", keep, above=0, below=1)
    check_counts(multiple_of=multiple_of)
    check_pruning(settings)
    check_choice("importance", importance, get_args(Importance))
    data, validation = checked_data("data", data), checked_data("validation", validation)
    batch_size = rows_per_batch(model, batch_size, data, validation)
    needs_loss = bool(steps) or judge is None or importance != "magnitude"
    used_loss = loss_of(model, loss) if needs_loss else None
    # A copy, because judging installs kernels in the layers.
    current = rebuild(model, describe(model))
    found = units_of(current)
    before = {group: features.size for group, features in found.groups().items()}
    final = {group: _kept(count, keep, multiple_of) for group, count in before.items()}
    _check_some_go(model, found, before, final)
    batches = endless(data, batch_size, seed)
    judge, judged_on = _judge(judge, validation, batches, used_loss, batch_size)
    quality_before = float(judge(current))
    course = Course(steps, on_step)
    for gone, trained, last in pruning_rounds(rounds, steps):
        left = {group: count - round(gone * (count - final[group])) for group, count in before.items()}
        current, batches = _pruned(current, batches, left, importance, used_loss)
        keeper = Keeper(current, judge)
        fine_tune(
            current,
            batches,
            loss=used_loss,
            steps=trained,
            learning_rate=learning_rate,
            course=course,
            # Judged on its own training data, the last model is best.
            keeper=keeper if last and judged_on != "data" else None,
        )
    quality_after = keeper.restore()
    compile_as(restore(current), model)
    return current, CompressionRecord(
        method="prune",
        settings=settings,
        metric=metric,
        quality_before=quality_before,
        quality_after=quality_after,
        parameters_before=model.count_params(),
        parameters_after=current.count_params(),
        seconds=time.perf_counter() - started,
        details={
            **_changed_layers(found, units_of(current)),
            "judged_on": judged_on,
            "losses": course.curve(),
        },
    )


def _pruned(
    model: keras.Model,
    batches: Iterator[tuple[Any, ...]],
    left: Mapping[_Group, int],
    importance: Importance,
    loss: Any,
) -> tuple[keras.Model, Iterator[tuple[Any, ...]]]:
    """Returns a model with the units that matter most, `left` of each group, and the batches to train it on."""
    units = units_of(model)
    # These batches are trained on as well: training does not depend on how the units were chosen.
    seen, batches = ahead(batches, 0 if importance == "magnitude" else _SALIENCY_BATCHES)
    scores = _scores(model, units, importance, iter(seen), loss)
    return without(model, units, _least(units, scores, left)), batches


def without(model: keras.Model, units: LayerUnits, removed: Array) -> keras.Model:
    """Gives a model without some of its units.

    Args:
        model: A Functional or Sequential model. It is not changed.
        units: The units of this model.
        removed: The features to remove, as numbered in `units.layers`; never all features of a layer.

    Returns:
        The smaller model, not compiled.

    Raises:
        ModelError: The model cannot be rebuilt.
    """
    description = describe(model)
    for path, node in layer_nodes(description):
        if _is_plain_keras(node):
            # This was for wider inputs; calling the layers builds them.
            node.pop("build_config", None)
        features = units.widths.get(path)
        if features is not None and np.isin(features, removed).any():
            count = int((~np.isin(features, removed)).sum())
            config = node["config"]
            if "batch_shape" in config:
                config["batch_shape"] = (*config["batch_shape"][:-1], count)
            else:
                config["units"] = count
    values = {id(variable): value for variable, value in zip(model.weights, model.get_weights(), strict=True)}
    for axis in units.axes:
        stays = ~np.isin(axis.features, removed)
        values[id(axis.variable)] = np.compress(stays, values[id(axis.variable)], axis.axis)
    return rebuild(model, description, [values[id(variable)] for variable in model.weights])


def saliency(model: keras.Model, units: LayerUnits, batches: Iterator[tuple[Any, ...]], loss: Any) -> Array:
    """Gives how much each unit matters to a loss, to first order.

    Take the sum of weight · gradient over all weights that read a unit, its own recurrent weights included.
    It equals the part of the sum over time of h · dloss/dh that passes through these weights: how much the
    loss would change if they were 0. Dropout and regularizers are off, and all is computed in float32.

    Args:
        model: A Functional or Sequential model. It is not changed.
        units: The units of this model.
        batches: Batches from `endless`; the next 16 are used.
        loss: A Keras loss.

    Returns:
        The mean over batches of the square, indexed by feature number: float64.

    Raises:
        TrainingError: The result is not finite.
    """
    copy = _plain(model)
    trainer = same_layers(accelerate(copy), f"{model.name}_trainer")
    # A plain SGD step gives the gradient on every backend: the fall of the weights over the step length.
    compile_with(trainer, loss, keras.optimizers.SGD(_LONG_STEP))
    places = {id(variable): place for place, variable in enumerate(model.weights)}
    reading = [(places[id(axis.variable)], axis) for axis in units.axes if axis.reads]
    start = copy.get_weights()
    total = np.zeros(_count(units))
    for batch in itertools.islice(batches, _SALIENCY_BATCHES):
        trainer.train_on_batch(*batch)
        after = copy.get_weights()
        change = np.zeros_like(total)
        for place, axis in reading:
            weight = start[place].astype("float64")
            _add(change, axis, weight * (weight - after[place]) / _LONG_STEP)
        total += change**2
        copy.set_weights(start)
    if not np.isfinite(total).all():
        raise TrainingError(
            "the gradients of the model on these data are not finite: look for NaN in either."
        )
    return total / _SALIENCY_BATCHES


def magnitude(model: keras.Model, units: LayerUnits) -> Array:
    """The L2 norm of the weights into and out of each unit, indexed by feature number: float64."""
    total = np.zeros(_count(units))
    values = {id(variable): value for variable, value in zip(model.weights, model.get_weights(), strict=True)}
    for axis in units.axes:
        _add(total, axis, values[id(axis.variable)].astype("float64") ** 2)
    return np.sqrt(total)


def _scores(
    model: keras.Model,
    units: LayerUnits,
    importance: Importance,
    batches: Iterator[tuple[Any, ...]],
    loss: Any,
) -> Array:
    """The importance of each unit, indexed by feature number; comparable within a group."""
    found = []
    if importance != "magnitude":
        found.append(saliency(model, units, batches, loss))
    if importance != "saliency":
        found.append(magnitude(model, units))
    ranks = np.zeros(_count(units))
    for features in units.groups().values():
        for scores in found:
            ranks[features] += np.argsort(np.argsort(scores[features], kind="stable"), kind="stable")
    return ranks


class _Held(keras.utils.PyDataset):
    """Batches set aside to judge on."""

    def __init__(self, batches: list[tuple[Any, ...]]) -> None:
        super().__init__()
        self._batches = list(map(without_lists, batches))

    def __len__(self) -> int:
        return len(self._batches)

    def __getitem__(self, index: int) -> tuple[Any, ...]:
        return self._batches[index]


def _judge(
    judge: Judge | None,
    validation: Data | None,
    batches: Iterator[tuple[Any, ...]],
    loss: Any,
    batch_size: int,
) -> tuple[Judge, str]:
    """Gives the judge, and its name in the record."""
    if judge is not None:
        return judge, "judge"
    held = validation
    if held is None:
        held = _Held(list(itertools.islice(batches, _JUDGED_BATCHES)))
    judged_on = "data" if validation is None else "validation"
    return lambda model: loss_on(model, held, loss=loss, batch_size=batch_size), judged_on


def _changed_layers(before: LayerUnits, after: LayerUnits) -> dict[str, Any]:
    """The layers that lost units, and the others with the reason; for the record."""
    kept = after.layers
    layers = {path: {"units": len(units), "kept": len(kept[path])} for path, units in before.layers.items()}
    return {"layers": layers, "kept_whole": dict(before.kept_whole)}


def _kept(count: int, keep: float, multiple_of: int) -> int:
    """The number of `count` units that stay in the end."""
    return min(count, multiple_of * max(1, round(round(keep * count) / multiple_of)))


def _least(units: LayerUnits, scores: Array, left: Mapping[_Group, int]) -> Array:
    """The units to remove, those with the lowest scores, so that each group keeps the number in `left`."""
    removed = [
        features[np.argsort(scores[features], kind="stable")[: features.size - left[group]]]
        for group, features in units.groups().items()
    ]
    return np.concatenate(removed)


def _check_some_go(
    model: keras.Model, units: LayerUnits, before: Mapping[_Group, int], final: Mapping[_Group, int]
) -> None:
    if not units.layers:
        reasons = "".join(f"\n- {path!r} stays whole: {why}." for path, why in units.kept_whole.items())
        found = reasons or " It has none that is called in its graph."
        raise ModelError(f"model {model.name!r} has no LSTM layer that can be pruned.{found}")
    if before == final:
        sizes = ", ".join(f"{len(features)} of {path!r}" for path, features in units.layers.items())
        raise ConfigError(
            f"keep and multiple_of leave all units of the model where they are ({sizes}): give a lower keep or "
            "multiple_of=1."
        )


def _plain(model: keras.Model) -> keras.Model:
    """A copy for taking gradients: float32, fully trainable, without random draws or regularisation."""
    description = describe(model)
    description["config"]["trainable"] = True
    for _, node in layer_nodes(description):
        config = node["config"]
        if not _is_plain_keras(node) or "trainable" not in config:
            continue
        # A frozen BatchNormalization computes with other statistics, so it stays frozen.
        if node["class_name"] != "BatchNormalization":
            config["trainable"] = True
        for name in config:
            if name in ("dropout", "recurrent_dropout", "rate", "stddev", "l1", "l2"):
                config[name] = 0.0
            elif name.endswith(("_regularizer", "_constraint")):
                config[name] = None
            elif name == "dtype" and node["class_name"] != "InputLayer":
                config[name] = "float32"
    return rebuild(model, description)


def _is_plain_keras(node: Mapping[str, Any]) -> bool:
    """True if a described layer is one of Keras's own."""
    return str(node.get("module")).split(".")[0] == "keras"


def _count(units: LayerUnits) -> int:
    """The length of an array indexed by feature number."""
    return 1 + max(int(axis.features.max(initial=0)) for axis in units.axes)


def _add(totals: Array, axis: WeightAxis, values: Array) -> None:
    """Adds the values of a weight to the totals of the features they belong to."""
    others = tuple(other for other in range(values.ndim) if other != axis.axis)
    np.add.at(totals, axis.features, values.sum(others))
