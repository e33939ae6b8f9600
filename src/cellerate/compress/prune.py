"""Structured pruning: whole units of LSTM layers taken out, which leaves a smaller dense model.

A module of its own because it changes the shape of a model, which no other way to compress does: which weights have
a unit is found by `layers.units`, which units matter least, and the training between the rounds, are here.
"""

import itertools
import time
from collections.abc import Iterator, Mapping
from typing import Any, Literal, get_args

import keras
import numpy as np

from cellerate.compress.fitting import (
    Course,
    Data,
    Judge,
    Keeper,
    OnStep,
    endless,
    fine_tune,
    loss_of,
    loss_on,
)
from cellerate.compress.record import CompressionRecord
from cellerate.errors import ConfigError, ModelError, TrainingError
from cellerate.keras_graph.ties import Units, units_of
from cellerate.keras_graph.ties_layers import Array, WeightAxis
from cellerate.layers.accelerate import accelerate, restore
from cellerate.models.rewrite import describe, layer_nodes, rebuild, same_layers
from cellerate.training.settings import check_choice, check_number

_SALIENCY_BATCHES = 16
_JUDGED_BATCHES = 16
# A step so long that what a weight loses by it says its gradient to all the digits that float32 has.
_LONG_STEP = 1e4

Importance = Literal["both", "saliency", "magnitude"]
"""How units are found that matter least."""

_Group = tuple[str, ...]
"""The paths of the layers that units are in: those of one group go out of the same layers."""


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
    """Takes the units that matter least out of the LSTM layers of a model, and trains what is left.

    A unit is its columns in the gates of an LSTM's weights and its rows in the weights that read it. What reads a
    unit must be known: Dense and LSTM layers, reached through layers that work on each feature alone. Layers whose
    units are added to one another, or that start from the states of one another, lose the same units. Layers whose
    units reach anything else stay whole, such as one right before a head that is tied to an embedding.

    Units are compared within a layer, and every layer keeps the same share: by how much a unit matters, layers are
    hardly comparable, as what it is worth depends on where in the model it is.

    Until it is trained, the model computes what the one before would with all weights that read the removed units
    at 0. A LayerNormalization then takes its mean over the units that are left; a stateful layer starts anew.

    Args:
        model: A built Functional or Sequential model. It is not changed.
        data: To find the least important units and to train with, as `fitting.Data`.
        keep: The share of each layer's units to keep, above 0 and below 1.
        validation: To judge on, four times in the last round: the best of the four models is kept. None for some
            batches of `data`, and keeps the last.
        loss: The Keras loss to train and judge with; None for the one that the model was compiled with.
        rounds: In how many rounds units go: most of them early, by the cubic schedule, with training after each.
            One is as good as several for the same number of steps, and faster.
        steps: How many batches to train on, in all; each round has the same share, the last what is left over too.
            The more, the better: a third of what the model itself was trained on is a good beginning.
        learning_rate: Of the training, where it begins; it falls to 0.
        batch_size: Rows of a batch, where data are arrays.
        importance: Which units go. "saliency": those whose removal changes the loss least, to first order: of the
            smallest mean square, over batches, of the sum over time of h · dloss/dh. "magnitude": those with the
            smallest weights (L2 norm), which looks at no data. "both": those of the lowest places in the two orders
            together, as each of the two alone is much the worse for some models.
        multiple_of: The number of units that a layer keeps is rounded to a multiple of this, one multiple at least
            and never more than there are, as kernels are fastest at such sizes.
        judge: How bad a model is; it takes the place of the loss on `validation`. None for that.
        metric: The name of what `judge` says.
        seed: Of the order of the batches.
        on_step: Told of each step of the training: how many are done, of how many, and the loss. What it raises
            ends the call.

    Returns:
        The smaller model, not compiled, and a record. Its details: "layers", by the path of each LSTM that was
        pruned the units it had ("units") and has ("kept"); "kept_whole", by the path of each other the reason;
        "judged_on", what the quality is of: "judge", "validation" or "data"; "losses", of the steps, at most 200 of
        them.

    Raises:
        ConfigError: An argument is out of range; nothing would go; there is no loss.
        DataError: There is no batch.
        ModelError: The model cannot be rebuilt, or none of its LSTM layers can be pruned; each reason is said.
        TrainingError: The loss is no longer a finite number.

    Source: the schedule: Zhu & Gupta, "To prune, or not to prune", 2017; saliency: Molchanov et al., "Importance
    Estimation for Neural Network Pruning", 2019.
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
    for name in ("rounds", "batch_size", "multiple_of"):
        check_number(name, settings[name], at_least=1, whole=True)
    for name in ("steps", "seed"):
        check_number(name, settings[name], at_least=0, whole=True)
    check_number("learning_rate", learning_rate, above=0)
    check_choice("importance", importance, get_args(Importance))
    needs_loss = bool(steps) or judge is None or importance != "magnitude"
    used_loss = loss_of(model, loss) if needs_loss else None
    # A copy, because judging puts kernels into layers.
    current = rebuild(model, describe(model))
    found = units_of(current)
    before = {group: features.size for group, features in found.groups().items()}
    final = {group: _kept(count, keep, multiple_of) for group, count in before.items()}
    _check_some_go(model, found, before, final)
    batches = endless(data, batch_size, seed)
    judge, judged_on = _judge(judge, validation, batches, used_loss, batch_size)
    quality_before = float(judge(current))
    course = Course(steps, on_step)
    for number in range(1, rounds + 1):
        # Cubic: the share of what is to go that is gone by now.
        share = 1 - (1 - number / rounds) ** 3
        left = {group: count - round(share * (count - final[group])) for group, count in before.items()}
        units = units_of(current)
        scores = _scores(current, units, importance, batches, used_loss)
        current = without(current, units, _least(units, scores, left))
        last = number == rounds
        trained = steps // rounds + (steps % rounds if last else 0)
        keeper = Keeper(current, judge)
        fine_tune(
            current,
            batches,
            loss=used_loss,
            steps=trained,
            learning_rate=learning_rate,
            course=course,
            # On the data that it is trained on, what comes last is best.
            keeper=keeper if last and judged_on != "data" else None,
        )
    quality_after = keeper.restore()
    restore(current)
    kept = units_of(current).layers
    details = {
        "layers": {
            path: {"units": len(units), "kept": len(kept[path])} for path, units in found.layers.items()
        },
        "kept_whole": dict(found.kept_whole),
        "judged_on": judged_on,
        "losses": course.curve(),
    }
    return current, CompressionRecord(
        method="prune",
        settings=settings,
        metric=metric,
        quality_before=quality_before,
        quality_after=quality_after,
        parameters_before=model.count_params(),
        parameters_after=current.count_params(),
        seconds=time.perf_counter() - started,
        details=details,
    )


def without(model: keras.Model, units: Units, removed: Array) -> keras.Model:
    """A model without some of its units.

    Args:
        model: A Functional or Sequential model. It is not changed.
        units: Of this model.
        removed: The features that go, as in `units.layers`; of no layer all.

    Returns:
        The smaller model, not compiled.

    Raises:
        ModelError: It cannot be rebuilt.
    """
    description = describe(model)
    for path, node in layer_nodes(description):
        if _is_plain_keras(node):
            # Built for inputs that are wider; they are built by being called.
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


def saliency(model: keras.Model, units: Units, batches: Iterator[tuple[Any, ...]], loss: Any) -> Array:
    """How much each unit matters to a loss, to first order.

    For a unit the sum of weight · gradient over all weights that read it, its own recurrent ones too, is the sum over
    time of h · dloss/dh by way of these: by how much the loss would change if they were 0. Dropout, regularizers and
    16 bits are left out.

    Args:
        model: A Functional or Sequential model. It is not changed.
        units: Of this model.
        batches: Of `endless`; the next 16 are taken.
        loss: A Keras loss.

    Returns:
        The mean over the batches of the square, by the number of the feature: float64.

    Raises:
        TrainingError: It is not finite.
    """
    copy = _plain(model)
    trainer = same_layers(accelerate(copy), f"{model.name}_trainer")
    # A plain step says the gradient on every backend: by how much the weights fell, by the length of the step.
    trainer.compile(optimizer=keras.optimizers.SGD(_LONG_STEP), loss=loss)
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
            "the gradients of the model on these data are no finite numbers: look for NaN in either."
        )
    return total / _SALIENCY_BATCHES


def magnitude(model: keras.Model, units: Units) -> Array:
    """The L2 norm of the weights into and out of each unit, by the number of the feature: float64."""
    total = np.zeros(_count(units))
    values = {id(variable): value for variable, value in zip(model.weights, model.get_weights(), strict=True)}
    for axis in units.axes:
        _add(total, axis, values[id(axis.variable)].astype("float64") ** 2)
    return np.sqrt(total)


def _scores(
    model: keras.Model, units: Units, importance: Importance, batches: Iterator[tuple[Any, ...]], loss: Any
) -> Array:
    """How much each unit matters, by the number of the feature; comparable within a group."""
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
    """Some batches, to judge on."""

    def __init__(self, batches: list[tuple[Any, ...]]) -> None:
        super().__init__()
        self._batches = batches

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
    """What judges, and the word for it in the record."""
    if judge is not None:
        return judge, "judge"
    held = validation
    if held is None:
        held = _Held(list(itertools.islice(batches, _JUDGED_BATCHES)))
    judged_on = "data" if validation is None else "validation"
    return lambda model: loss_on(model, held, loss=loss, batch_size=batch_size), judged_on


def _kept(count: int, keep: float, multiple_of: int) -> int:
    """How many of so many units stay in the end."""
    return min(count, multiple_of * max(1, round(round(keep * count) / multiple_of)))


def _least(units: Units, scores: Array, left: Mapping[_Group, int]) -> Array:
    """The units to take out so that so many of each group are left: those of the lowest scores."""
    removed = [
        features[np.argsort(scores[features], kind="stable")[: features.size - left[group]]]
        for group, features in units.groups().items()
    ]
    return np.concatenate(removed)


def _check_some_go(
    model: keras.Model, units: Units, before: Mapping[_Group, int], final: Mapping[_Group, int]
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
    """A copy to take gradients of: in float32, all of it trainable, with nothing drawn at random or added."""
    description = describe(model)
    description["config"]["trainable"] = True
    for _, node in layer_nodes(description):
        config = node["config"]
        if not _is_plain_keras(node) or "trainable" not in config:
            continue
        # One that is frozen computes with other statistics.
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
    """Whether a layer that is described is one of Keras's own."""
    return str(node.get("module")).split(".")[0] == "keras"


def _count(units: Units) -> int:
    """How long an array is that has a place for each feature, by its number."""
    return 1 + max(int(axis.features.max(initial=0)) for axis in units.axes)


def _add(totals: Array, axis: WeightAxis, values: Array) -> None:
    """Adds the values of a weight to the totals of the features that they belong to."""
    others = tuple(other for other in range(values.ndim) if other != axis.axis)
    np.add.at(totals, axis.features, values.sum(others))
