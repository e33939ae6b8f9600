"""Opens a trained model in any form. Keras is imported only if the model needs it."""

from __future__ import annotations

import functools
import os
from collections.abc import Callable
from typing import TYPE_CHECKING, Literal, TypeAlias, Union

import numpy as np

from cellerate.data.files import Errors
from cellerate.errors import ConfigError
from cellerate.machine.environment import require
from cellerate.messages import argument
from cellerate.runtime.packed import PackedModel, load

if TYPE_CHECKING:
    import keras

    from cellerate.models.storage import TaskRecord
    from cellerate.tasks.judging import SeriesForecaster

Path = str | os.PathLike[str]
Model = Union[Path, "keras.Model", PackedModel]
Opened: TypeAlias = "PackedModel | tuple[keras.Model, TaskRecord | None, str]"


def open_model(model: Model, record: TaskRecord | None = None, *, device: str = "cpu") -> Opened:
    """Opens a model.

    Args:
        model: A `.keras` or `.cell` file, a Keras model, or a packed model.
        record: The record of a Keras model that is not given as a file.
        device: The device that a `.cell` file is loaded on.

    Returns:
        A packed model; or a Keras model, its record, and its name in messages.

    Raises:
        CellerateError: The file cannot be used, or the record is not for this model.
    """
    given = isinstance(model, str | os.PathLike)
    if record is not None and (given or isinstance(model, PackedModel)):
        raise ConfigError("record is for a Keras model, and this one has its own: leave it out.")
    if isinstance(model, PackedModel):
        return model
    if given and os.fspath(model).endswith(".cell"):
        return load(model, device=device)
    require("keras", "jax", "a model that is not packed")
    import keras

    from cellerate.keras_graph import keras2
    from cellerate.models.storage import check_fits, load_model

    if given:
        return *load_model(model), os.fspath(model)
    if isinstance(model, keras.Model):
        name = f"the model {model.name!r}"
        if record is not None:
            check_fits(name, model, record)
        return model, record, name
    keras2.refuse(model)
    raise ConfigError(
        f"{argument('model')} must be a path, a Keras model or a packed model, not {type(model).__name__}."
    )


def record_for(record: TaskRecord | None, task: Literal["text", "series", "embed"], name: str) -> TaskRecord:
    """The record of a model, which must be for a task. Raises `ModelError` otherwise."""
    from cellerate.models.storage import check_task

    check_task(name, record, task)
    assert record is not None  # noqa: S101 (a model without one was just refused)
    return record


def forecaster_of(opened: Opened, name: str = "this packed model") -> SeriesForecaster:
    """Return a model as a forecaster.

    Args:
        opened: The model.
        name: Its name in messages, if it is packed.

    Raises:
        ModelError: It is not a forecaster, or its record is damaged.
    """
    from cellerate.tasks.judging import SeriesForecaster

    if isinstance(opened, PackedModel):
        return SeriesForecaster.of(opened.forecaster.predict, opened.cell.header.get("payload"), name)
    network, found, name = opened
    return SeriesForecaster.of(network.predict_on_batch, record_for(found, "series", name).payload, name)


def embedder_of(opened: Opened, batch_size: int, errors: Errors) -> Callable[..., np.ndarray]:
    """The function that turns lines into vectors, (N, latent) float32, with a model.

    Args:
        opened: The model.
        batch_size: Lines per batch.
        errors: What to do with a character the model never saw: "strict" raises, "replace" reads it as unknown.

    Raises:
        ModelError: It is not a line model, or its record is damaged.
    """
    if isinstance(opened, PackedModel):
        return functools.partial(opened.embed, batch_size=batch_size, errors=errors)
    from cellerate.models.autoencoder import encoder_and_decoder
    from cellerate.tasks.embed import embed_lines, line_model_of

    network, found, name = opened
    line_model = line_model_of(name, network, record_for(found, "embed", name))
    encoder, _ = encoder_and_decoder(network)
    return functools.partial(embed_lines, line_model, encoder=encoder, batch_size=batch_size, errors=errors)
