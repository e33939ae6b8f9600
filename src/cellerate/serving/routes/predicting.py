"""Predictions of tensors, for the protocols that ask for them."""

from collections.abc import Mapping, Sequence

import numpy as np
from starlette.requests import Request

from cellerate.serving.answer_size import check_prediction
from cellerate.serving.answers import unless_gone
from cellerate.serving.models import Served
from cellerate.serving.server_state import metrics_of, models_of


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
    metrics, limits, model = metrics_of(request), models_of(request).limits, served.model
    served.check_ids(tensors)

    def call() -> dict[str, np.ndarray]:
        check_prediction(model, tensors, outputs, limits)
        found = model.predict(tensors, outputs)
        return found if isinstance(found, dict) else {(outputs or model.outputs)[0]: found}

    with metrics.call_s.labels(served.name).time():
        made = await unless_gone(request, served.calls.run(call, limits.request_s))
    metrics.inferences.labels(served.name).inc(len(next(iter(tensors.values()))))
    return made
