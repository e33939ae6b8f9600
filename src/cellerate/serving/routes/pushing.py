"""New steps for sessions, from what clients send: rows of numbers in the units of the data, ids or text."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from cellerate.errors import ConfigError
from cellerate.serving.answer_size import check_pushes
from cellerate.serving.answers import RequestError, inputs_of
from cellerate.serving.limits import Limits
from cellerate.serving.metrics import Metrics
from cellerate.serving.models import Served
from cellerate.serving.sessions import Push, Result, SessionWorker


def worker_of(served: Served) -> SessionWorker:
    """Return the worker of a model's sessions.

    Raises:
        RequestError: The model does not have sessions; the message says why.
    """
    if served.sessions is None:
        raise RequestError(400, f"{served.name} keeps no sessions: {served.no_sessions}")
    return served.sessions


async def push_all(served: Served, metrics: Metrics, limits: Limits, pushes: Sequence[Push]) -> list[Result]:
    """Pushes to sessions; each gives its outputs or its error.

    Raises:
        BusyError: Too many pushes wait.
        RequestError: They are too long, or their answer would be too large.
        DeadlineError: The pushes waited for too long, and nothing was read.
    """
    worker = worker_of(served)
    check_pushes(pushes, worker.sessions.size, limits)
    with metrics.push_s.labels(served.name).time():
        results = await worker.push(pushes, limits.request_s)
    failed = sum(isinstance(result, Exception) for result in results)
    metrics.pushes.labels(served.name).inc(len(results) - failed)
    metrics.push_errors.labels(served.name).inc(failed)
    return results


async def push_one(
    served: Served,
    metrics: Metrics,
    limits: Limits,
    name: str,
    inputs: Mapping[str, np.ndarray],
    *,
    begin: bool = False,
    end: bool = False,
    restart: bool = False,
) -> dict[str, np.ndarray]:
    """Pushes to one session.

    Raises:
        CellerateError: What went wrong.
    """
    (result,) = await push_all(served, metrics, limits, [Push(name, inputs, begin, end, restart)])
    if isinstance(result, Exception):
        raise result
    return result


def steps_of(served: Served, given: Any) -> dict[str, np.ndarray]:
    """The arrays of a push from JSON: one array, arrays by name, or a text.

    Raises:
        ConfigError: The value has another form, or rows have different lengths.
        DataError: The value holds an id that the model does not know.
    """
    if isinstance(given, str):
        if served.model.task != "text":
            raise ConfigError(f"{served.name} reads no text; expected steps of numbers.")
        return {_only_input(served): served.model.tokenizer.encode_prompt(given)}
    arrays = given if isinstance(given, dict) else {_only_input(served): given}
    # Rows of a series are in the units of the data: what float32 must hold is what they are scaled to.
    found = inputs_of(arrays, scaled_later=served.series is not None)
    served.check_ids(found)
    return found


def _only_input(served: Served) -> str:
    names = list(served.model.inputs)
    if len(names) > 1:
        raise ConfigError(f"inputs must be arrays by name, for this model has {', '.join(names)}.")
    return names[0]
