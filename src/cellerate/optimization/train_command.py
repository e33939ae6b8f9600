"""The complete command for future training, with the model's architecture and the chosen settings."""

from __future__ import annotations

import dataclasses
import shlex
from collections.abc import Iterator, Sequence
from typing import Any

import keras

from cellerate.data.settings import TableOptions
from cellerate.models.autoencoder import build_autoencoder
from cellerate.models.cells import Cell
from cellerate.models.forecast import build_forecast_model
from cellerate.models.text import RECURRENT_LAYERS, build_text_model
from cellerate.optimization.context import Context
from cellerate.optimization.stages.steps import batch_items
from cellerate.optimization.training import learning_rate_of, settings_of
from cellerate.optimization.workloads.base import Workload
from cellerate.settings import differing_options, every_option
from cellerate.tasks.judging import shares_map
from cellerate.tasks.settings import (
    AutoencoderArchitecture,
    ForecastArchitecture,
    TextArchitecture,
    recorded_kinds,
)
from cellerate.training.settings import TrainingSettings

_FILE = "retrained.keras"


def train_command(context: Context) -> str:
    """Return the command line that trains such a model on the same data with the settings that the run chose.

    For a model that the command line cannot build, the command names the file and continues from its weights.
    """
    work, choices = context.workload, context.state.choices
    training_settings = settings_of(work.record)
    larger = choices.accumulate * batch_items(choices) / batch_items(context.state.training_steps[0])
    chosen: dict[str, Any] = {
        "batch_size": choices.batch_size,
        "length": choices.length,
        "precision": choices.training_precision,
        "optimizer": training_settings.optimizer,
        "learning_rate": float(f"{learning_rate_of(training_settings, larger):.3g}"),
        **context.settings.reading.given,
    }
    words = ["cellerate", "train", work.record.task, *context.data]
    architecture = architecture_of(work)
    if architecture is not None:
        words += every_option(architecture)
    else:
        # The file of Keras does not have the quantiles.
        quantiles = {"quantile": tuple(work.record.payload.get("quantiles", ()))}
        words += ["--model", str(context.model_file), *differing_options(ForecastArchitecture, quantiles)]
    for kind in recorded_kinds(work.record.task):
        words += differing_options(kind, _recorded(work), chosen)
    words += differing_options(TableOptions, vars(context.settings.table))
    training = dataclasses.asdict(training_settings) | {
        "accumulate": training_settings.accumulate * choices.accumulate
    }
    if choices.implementation == "keras":
        training["implementation"] = "keras"
    words += differing_options(TrainingSettings, training, chosen)
    return shlex.join([*words, "--backend", context.backend, "-o", str(context.folder / _FILE)])


def architecture_of(work: Workload) -> Any | None:
    """Return the settings that build the model of a workload; None if there are none, as for a user's own model."""
    guess = {"text": _text, "series": _series, "embed": _lines}[work.record.task]
    try:
        settings, built = guess(work)
    # A model of another kind may lack anything that is read here.
    except (LookupError, AttributeError, TypeError, ValueError):
        return None
    return settings if _described(built) == _described(work.model) else None


def _text(work: Workload) -> tuple[TextArchitecture, keras.Model]:
    layers = list(_layers(work.model))
    tables = [one for one in layers if isinstance(one, keras.layers.Embedding)]
    cell, recurrent = _recurrent(layers)
    found = TextArchitecture(
        embedding=tables[0].output_dim,
        units=recurrent[0].units,
        layers=len(recurrent),
        cell=cell,
        dropout=_rate(layers),
        recurrent_dropout=recurrent[0].recurrent_dropout,
        layer_norm=any(isinstance(one, keras.layers.LayerNormalization) for one in layers),
        tie_weights=isinstance(tables[0], keras.layers.ReversibleEmbedding),
    )
    return found, build_text_model(tables[0].input_dim, **dataclasses.asdict(found))


def _series(work: Workload) -> tuple[ForecastArchitecture, keras.Model]:
    layers, payload = list(_layers(work.model)), work.record.payload
    cell, recurrent = _recurrent(layers)
    both = any(isinstance(one, keras.layers.Bidirectional) for one in layers)
    options, inputs = payload["options"], {one.name: one.shape for one in work.model.inputs}
    _, window, features = inputs["series"]
    tables = [one for one in layers if isinstance(one, keras.layers.Embedding)]
    found = ForecastArchitecture(
        units=recurrent[0].units,
        layers=len(recurrent) // 2 if both else len(recurrent),
        cell=cell,
        bidirectional=both,
        dropout=_rate(layers),
        quantile=tuple(payload["quantiles"]),
        residual=any(isinstance(one, keras.layers.Cropping1D) for one in layers),
        series_embedding=tables[0].output_dim if tables else 0,
    )
    arguments = dataclasses.asdict(found)
    targets = list(options["target"])
    columns = [options["feature"].index(one) for one in targets] if found.residual else []
    quantiles = list(arguments.pop("quantile")) or None
    known = [options["feature"].index(one) for one in options.get("future", ())]
    built = build_forecast_model(
        window,
        features,
        options["horizon"],
        len(targets),
        target_columns=columns,
        quantiles=quantiles,
        absolute=[*known, *range(len(options["feature"]), features)],
        future=inputs["future"][-1] if "future" in inputs else 0,
        series=tables[0].input_dim - 1 if tables else 1,
        shared_linear=shares_map(len(targets), window, options["horizon"]),
        **arguments,
    )
    return found, built


def _lines(work: Workload) -> tuple[AutoencoderArchitecture, keras.Model]:
    by_name = {one.name: one for one in _layers(work.model)}
    rates = {name: by_name[name].rate for name in ("encoder_dropout", "character_dropout") if name in by_name}
    found = AutoencoderArchitecture(
        embedding=by_name["source_embedding"].output_dim,
        units=by_name["decoder"].units,
        latent=by_name["vector"].units,
        dropout=rates.get("encoder_dropout", 0.0),
        decoder_dropout=rates.get("character_dropout", 0.0),
    )
    return found, build_autoencoder(by_name["source_embedding"].input_dim, **dataclasses.asdict(found))


def _recurrent(layers: Sequence[Any]) -> tuple[Cell, list[Any]]:
    """The kind of the first recurrent layer, and all recurrent layers of this kind."""
    kinds = {layer: cell for cell, layer in RECURRENT_LAYERS.items()}
    found = [one for one in layers if type(one) in kinds]
    return kinds[type(found[0])], [one for one in found if type(one) is type(found[0])]


def _layers(model: Any) -> Iterator[Any]:
    """The layers of a model, including those in nested models and wrappers."""
    for layer in model.layers:
        yield layer
        if isinstance(layer, keras.Model):
            yield from _layers(layer)
        elif isinstance(layer, keras.layers.Bidirectional):
            yield from (layer.forward_layer, layer.backward_layer)


def _rate(layers: Sequence[Any]) -> float:
    return next((one.rate for one in layers if isinstance(one, keras.layers.Dropout)), 0.0)


def _described(model: keras.Model) -> list[Any]:
    """The properties that models of the same architecture share, whatever their names, seeds and weights."""
    kinds = [
        (type(one).__name__, getattr(one, "rate", None), getattr(one, "recurrent_dropout", None))
        for one in _layers(model)
    ]
    return [kinds, [tuple(weight.shape) for weight in model.weights]]


def _recorded(work: Workload) -> dict[str, Any]:
    """The options of the task's data that the model's record holds."""
    payload = work.record.payload
    options = dict(payload.get("options", payload))
    kind = (payload.get("tokenizer") or {}).get("kind", "characters")
    # The record does not name the file of a user's own tokenizer.
    options["tokenizer"] = kind if kind in ("characters", "bytes") else "TOKENIZER.json"
    return options
