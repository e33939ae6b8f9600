"""A training that only times a few of its steps, to compare or predict numbers of processes.

`distributed` asks for it in the environment: where to write the result, and for how many processes the rows are shared
whose steps are timed.
"""

from __future__ import annotations

import json
import math
import os
from pathlib import Path
from typing import Any

import keras

from cellerate.data.arrays import BatchSource
from cellerate.data.windows import share_of
from cellerate.layers.accelerate import accelerate
from cellerate.machine.environment import PROBE_VARIABLE, peak_memory_bytes
from cellerate.training.parallel import Processes, check_whole_batches
from cellerate.training.pipeline import planned_stages
from cellerate.training.settings import TrainingSettings
from cellerate.training.trial import try_training

_STEPS = 12


def is_probe() -> bool:
    """True if this process is only to time its steps."""
    return PROBE_VARIABLE in os.environ


def check_probe(*, carry_states: bool) -> None:
    """Raises `ConfigError` if steps are to be timed with a part of their rows, and states carry over."""
    if carry_states and is_probe():
        check_whole_batches(max(_request()["shares"]))


def _request() -> dict[str, Any]:
    request: dict[str, Any] = json.loads(os.environ[PROBE_VARIABLE])
    return request


def end_probe(
    trainer: keras.Model,
    source: BatchSource,
    loss: Any,
    settings: TrainingSettings,
    policy: str,
    processes: Processes,
) -> None:
    """Times a few steps and ends the process; the first of several writes the result, as JSON.

    Raises:
        SystemExit: Always.
    """
    request = _request()
    step_s, memory = {}, {}
    # From the fewest rows to the most: the peak of the memory never falls.
    for count in sorted(request["shares"], reverse=True):
        rows = processes.share(source) if processes.several else share_of(source, 0, count)
        # Processes that add up their gradients do not train in whole steps.
        engine = "auto" if count == 1 and not processes.several else "off"
        if not processes.layout.divided:
            accelerate(trainer, settings.implementation, engine=engine, sum_embedding_gradients=True)
        trial = try_training(
            trainer, rows, loss=processes.loss(loss), settings=settings, policy=policy, steps=_STEPS
        )
        step_s[count], memory[count] = trial.steps.median_s, peak_memory_bytes()
    stages = {count: planned_stages(trainer, source, count) for count in request.get("stages", ())}
    link = processes.measure_link()
    if processes.first:
        result = {
            "step_s": step_s,
            "memory_bytes": memory,
            "gradient_bytes": sum(4 * math.prod(weight.shape) for weight in trainer.trainable_weights),
            "batches": len(source),
            "batch_size": source.batch_size,
            "items": source.items_per_batch,
            "item": source.item,
            "link": link,
            "stages": stages,
        }
        Path(request["result"]).write_text(json.dumps(result))
    raise SystemExit(0)
