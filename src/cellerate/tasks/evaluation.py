"""Judges a Keras model that Cellerate wrote: calls the evaluation of its task."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import keras

from cellerate.data.files import check_paths
from cellerate.errors import ConfigError
from cellerate.models.storage import TaskRecord
from cellerate.tasks.embed import evaluate_lines, line_model_of, lines_for
from cellerate.tasks.judging import EvaluationOptions, SeriesForecaster, evaluate_forecaster
from cellerate.tasks.settings import TextFileReading, TextOptions
from cellerate.tasks.text import evaluate_text, text_model_of


def evaluate_model(
    model: keras.Model,
    record: TaskRecord,
    data: Any,
    *,
    name: str,
    texts: TextFileReading,
    batch_size: int,
    asked: EvaluationOptions,
) -> dict[str, Any]:
    """Judges a model on data of its task; the arguments are those of `tasks.inference.evaluate`.

    Args:
        model: The model.
        record: Its record.
        data: Text files, series files, or one file of lines.
        name: What messages call the model.
        texts: How files of texts and lines are read.
        batch_size: Rows per batch.
        asked: The part of the data, and the further options of a forecaster.

    Raises:
        CellerateError: Anything wrong with the model or the data.
    """
    texts.check_used(record.task)
    if record.task == "series":
        forecaster = SeriesForecaster.of(model.predict_on_batch, record.payload, name)
        return {"task": "series", **evaluate_forecaster(forecaster, data, **vars(asked))}
    asked.check_unused()
    paths = [Path(path) for path in check_paths(data)]
    if record.task == "text":
        text_model = text_model_of(model, record, name)
        # The files of a folder that `train` left out are left out here too.
        others = {"paths": paths, "errors": texts.errors, "batch_size": batch_size} | texts.given(
            "field", "encoding"
        )
        options = TextOptions.of_record(text_model.record, name, **others)
        return {"task": "text", **evaluate_text(text_model, options, part=asked.part or "all")}
    if asked.part == "held-out" or len(paths) != 1:
        raise ConfigError("a line model is judged on all lines of one file: part must be 'all'.")
    lines = lines_for(record, paths[0], texts.errors, texts.given("column", "field", "encoding"))
    line_model = line_model_of(name, model, record)
    return {"task": "embed", **evaluate_lines(line_model, lines, batch_size=batch_size)}
