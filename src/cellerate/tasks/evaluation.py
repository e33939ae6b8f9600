"""Judges any model that Cellerate wrote: reads its task from the file and calls that task's evaluation."""

import dataclasses
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Literal

from cellerate.errors import ConfigError, ModelError
from cellerate.models.storage import load_model
from cellerate.tasks.settings import TextOptions


def evaluate_model(
    path: str | Path,
    data: Sequence[str],
    *,
    part: Literal["all", "held-out"] = "all",
    column: str | None = None,
    errors: Literal["strict", "replace"] = "strict",
    batch_size: int = 128,
) -> dict[str, Any]:
    """Judges a model file on data of its task.

    Args:
        path: The model.
        data: Text files, series files, or one file of lines.
        part: All of the data, or the part that training on the same data held out (text and series only).
        column: The column of a Parquet file of lines.
        errors: For text and lines: what to do with bytes that are not UTF-8 and with a line's unknown
            characters.
        batch_size: Rows per batch.

    Raises:
        CellerateError: Anything wrong with the model or the data.
    """
    model, record = load_model(path)
    if record is None:
        raise ModelError(
            f"{path} is a plain Keras model: its task is not known. Train it with `cellerate train ... --model`."
        )
    if record.task == "text":
        from cellerate.tasks.text import evaluate_text, text_model_of

        text_model = text_model_of(model, record)
        told = text_model.record
        try:
            # The files of a folder that `train` left out are left out here too.
            cut = {name: told[name] for name in ("length", "validation_fraction", "include", "exclude")}
            options = TextOptions(paths=data, **cut)
        except (KeyError, TypeError, ValueError) as error:
            raise ModelError(
                f"the task record of {path} is damaged: {error}. Train the model again."
            ) from error
        options = dataclasses.replace(options, errors=errors, batch_size=batch_size)
        return {"task": "text", **evaluate_text(text_model, options, part=part)}
    if record.task == "series":
        from cellerate.tasks.series import evaluate_series, series_model_of

        series_model = series_model_of(path, model, record)
        return {"task": "series", **evaluate_series(series_model, data, part=part)}
    from cellerate.data.line_files import read_lines
    from cellerate.tasks.embed import evaluate_lines, line_model_of

    if part != "all" or len(data) != 1:
        raise ConfigError("a line model is judged on all lines of one file: part must be 'all'.")
    lines = read_lines(data[0], column=column, errors=errors)
    line_model = line_model_of(path, model, record)
    return {"task": "embed", **evaluate_lines(line_model, lines, batch_size=batch_size)}
