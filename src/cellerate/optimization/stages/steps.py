"""Training steps: their time, and the gain of a change."""

from __future__ import annotations

from typing import Any

from cellerate.optimization.probe_client import Probe
from cellerate.optimization.state import Choices
from cellerate.optimization.training import way_of
from cellerate.report.record import Change, TrainingStep


def training_step(
    probe: Probe,
    *,
    implementation: str,
    policy: str,
    batch_size: int,
    length: int | None,
    **options: Any,
) -> TrainingStep:
    """Let a probe train its model briefly.

    Args:
        probe: The process.
        implementation: The implementation of the LSTM layers.
        policy: Keras's dtype policy.
        batch_size: Rows per batch.
        length: Time steps per row; None if the task has no choice of length.
        options: Options of `Probe.ask`, and options of the question: "seconds", "steps".

    Raises:
        ProbeError: The training failed.
    """
    found = probe.ask(
        "train",
        way=way_of(implementation, policy),
        policy=policy,
        implementation=implementation,
        batch_size=batch_size,
        length=length,
        **options,
    )
    return TrainingStep(**found)


def batch_items(of: TrainingStep | Choices) -> int:
    """Return the size of a batch: in rows, or in ids if the length of a row is a choice."""
    return of.batch_size * (of.length or 1)


def step_gain(before: TrainingStep, after: TrainingStep, label: str = "training step") -> Change:
    """Return the gain of one kind of step over another on batches of the same shape."""
    return Change(
        quantity="training",
        label=label,
        before=before.step_ms,
        after=after.step_ms,
        unit="ms",
        higher_is_better=False,
    )
