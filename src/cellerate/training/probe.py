"""A training that only times a few of its steps, for `distributed.launch` to compare numbers of processes."""

import json
import os
from pathlib import Path
from typing import Any

import keras

from cellerate.data.batches import BatchSource
from cellerate.machine.environment import PROBE_VARIABLE
from cellerate.training.parallel import Processes
from cellerate.training.settings import TrainingSettings
from cellerate.training.trial import try_training

_STEPS = 12


def is_probe() -> bool:
    """Whether this process is only to time its steps."""
    return PROBE_VARIABLE in os.environ


def end_probe(
    trainer: keras.Model,
    source: BatchSource,
    loss: Any,
    settings: TrainingSettings,
    policy: str,
    processes: Processes,
) -> None:
    """Times a few steps and ends the process; the first of several writes the result.

    Raises:
        SystemExit: Always.
    """
    trial = try_training(
        trainer,
        processes.share(source),
        loss=processes.loss(loss),
        settings=settings,
        policy=policy,
        steps=_STEPS,
    )
    if processes.first:
        Path(os.environ[PROBE_VARIABLE]).write_text(json.dumps({"step_s": trial.steps.median_s}))
    raise SystemExit(0)
