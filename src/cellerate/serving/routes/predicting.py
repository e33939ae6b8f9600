"""Whole calls of a model, each in its turn: predictions of tensors, and what other protocols ask for."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TypeVar

import numpy as np
from starlette.requests import Request

from cellerate.serving.answer_size import check_prediction
from cellerate.serving.answers import unless_gone
from cellerate.serving.models import Served
from cellerate.serving.server_state import metrics_of, models_of

_Found = TypeVar("_Found")


async def in_turn(served: Served, request: Request, call: Callable[[], _Found], rows: int) -> _Found:
    """Computes a call of a model in its turn, and counts it.

    Args:
        served: The model.
        request: The request; if its client goes, nothing is computed any more.
        call: The computation.
        rows: The number of rows that it takes.

    Raises:
        CellerateError: The call failed, too many calls wait, or the client has gone.
    """
    with metrics_of(request).call_s.labels(served.name).time():
        limit_s = models_of(request).limits.request_s
        return await unless_gone(request, served.calls.run(call, limit_s, rows=rows))


async def predicted(
    served: Served, request: Request, tensors: Mapping[str, np.ndarray], outputs: Sequence[str] | None = None
) -> dict[str, np.ndarray]:
    """Compute outputs of a model when its turn comes.

    Args:
        served: The model.
        request: The request; if its client disconnects, nothing more is computed.
        tensors: The array of each input by its name, the batch first.
        outputs: Which outputs; None for all.

    Returns:
        Each output by its name.

    Raises:
        CellerateError: The tensors do not fit the model, too many calls wait, or the client has gone.
    """
    limits, model = models_of(request).limits, served.model
    served.check_ids(tensors)

    def call() -> dict[str, np.ndarray]:
        check_prediction(model, tensors, outputs, limits)
        found = model.predict(tensors, outputs)
        return found if isinstance(found, dict) else {(outputs or model.outputs)[0]: found}

    return await in_turn(served, request, call, len(next(iter(tensors.values()), ())))
