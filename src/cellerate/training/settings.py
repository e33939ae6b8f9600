"""The settings of a training run: one frozen record, checked when it is created.

The command line, the Python API, the checkpoint and `cellerate.optimize` all use it. The Attributes section is also
the help of the command line's options. The module must import nothing heavy, so that the command line can show its
defaults at once.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any, Literal, get_args

from cellerate.errors import ConfigError
from cellerate.messages import argument
from cellerate.settings import check_choice, check_number

OptimizerName = Literal["adam", "adamw", "nadam", "sgd", "lion"]
ScheduleName = Literal["constant", "cosine", "linear", "exponential"]
Precision = Literal["auto", "float32", "mixed_bfloat16", "mixed_float16"]
TrackerName = Literal["tensorboard", "wandb", "mlflow"]
Implementation = Literal["auto", "cellerate-cpu", "cellerate-cuda", "keras"]

# What may differ between a run and the run that resumes it: how long it lasts and what it shows.
# Everything else changes the curve, so a checkpoint refuses other values.
_FREE_ON_RESUME = frozenset(
    {
        "epochs",
        "max_seconds",
        "time_budget",
        "checkpoint_every_s",
        "keep_checkpoints",
        "patience",
        "track",
        "jit_compile",
        "log_every",
    }
)


@dataclasses.dataclass(frozen=True, kw_only=True)
class TrainingSettings:
    """The settings of training, whatever the task.

    Attributes:
        epochs: Passes over the training data.
        optimizer: One of adam, adamw, nadam, sgd (with `momentum`), lion.
        learning_rate: The peak learning rate.
        weight_decay: Decoupled weight decay; None leaves the optimizer's own default.
        momentum: Nesterov momentum of sgd.
        schedule: How the rate falls from its peak to `final_rate` of it over the whole run.
        warmup_steps: Optimizer updates over which the rate first rises from zero.
        final_rate: The share of `learning_rate` left at the end of a schedule, 0 to 1.
        plateau_patience: Epochs without a better validation loss before the rate is multiplied by
            `plateau_factor`; None switches this off. Needs `schedule="constant"`.
        plateau_factor: See `plateau_patience`.
        clipnorm: Clips the norm of each variable's gradient.
        clipvalue: Clips each element of the gradients.
        global_clipnorm: Clips the norm of all gradients together.
        accumulate: Batches whose gradients are averaged into one update.
        precision: The dtype policy, or "auto": measure, and keep the faster one that holds the loss.
        implementation: What computes the LSTM layers: "auto" uses Cellerate's kernels for every layer they fit,
            "cellerate-cpu" and "cellerate-cuda" require them, "keras" leaves the layers to Keras.
        jit_compile: Keras's own argument: True, False or "auto".
        patience: Stops after this many epochs without a better validation loss; None never stops early.
        max_seconds: Stops cleanly after this many seconds of training; None sets no limit. Under a limit, models are
            judged on a sample where judging all held-out data would take more than a quarter of it.
        time_budget: About how many seconds the whole run may take, reading and judging included; None sets no limit.
        checkpoint_every_s: Seconds between two checkpoints within an epoch.
        keep_checkpoints: How many of the last checkpoints stay on the disk: a damaged one is passed over.
        log_every: Steps between two points of the loss curve.
        track: Trackers that get the figures, too: "tensorboard" (files in the run folder), "wandb", "mlflow".
        seed: Seeds the weights, the dropout and the order of the data.
    """

    epochs: int = 10
    optimizer: OptimizerName = "adam"
    learning_rate: float = 0.001
    weight_decay: float | None = None
    momentum: float = 0.9
    schedule: ScheduleName = "constant"
    warmup_steps: int = 0
    final_rate: float = 0.0
    plateau_patience: int | None = None
    plateau_factor: float = 0.5
    clipnorm: float | None = None
    clipvalue: float | None = None
    global_clipnorm: float | None = None
    accumulate: int = 1
    precision: Precision = "float32"
    implementation: Implementation = "auto"
    jit_compile: bool | Literal["auto"] = "auto"
    patience: int | None = None
    max_seconds: float | None = None
    time_budget: float | None = None
    checkpoint_every_s: float = 60.0
    keep_checkpoints: int = 2
    log_every: int = 50
    track: Sequence[str] = ()
    seed: int = 0

    def __post_init__(self) -> None:
        """Checks every field.

        Raises:
            ConfigError: A field cannot be used, or two fields contradict each other.
        """
        check_choice("optimizer", self.optimizer, get_args(OptimizerName))
        check_choice("schedule", self.schedule, get_args(ScheduleName))
        check_choice("precision", self.precision, get_args(Precision))
        check_choice("implementation", self.implementation, get_args(Implementation))
        # `--track wandb,mlflow` is what other tools' users type.
        given = [self.track] if isinstance(self.track, str) else self.track
        names = tuple(dict.fromkeys(name for entry in given for name in entry.split(",")))
        object.__setattr__(self, "track", names)
        for name in names:
            check_choice("track", name, get_args(TrackerName))
        for name in ("epochs", "accumulate", "keep_checkpoints", "log_every"):
            check_number(name, getattr(self, name), at_least=1, whole=True)
        for name in ("warmup_steps", "seed"):
            check_number(name, getattr(self, name), at_least=0, whole=True)
        for name in ("plateau_patience", "patience"):
            check_number(name, getattr(self, name), at_least=1, whole=True, optional=True)
        check_number("learning_rate", self.learning_rate, above=0)
        check_number("weight_decay", self.weight_decay, at_least=0, optional=True)
        check_number("momentum", self.momentum, at_least=0, below=1)
        check_number("final_rate", self.final_rate, at_least=0, at_most=1)
        check_number("plateau_factor", self.plateau_factor, above=0, below=1)
        for name in ("max_seconds", "time_budget"):
            check_number(name, getattr(self, name), above=0, optional=True)
        check_number("checkpoint_every_s", self.checkpoint_every_s, above=0)
        clips = ("clipnorm", "clipvalue", "global_clipnorm")
        for name in clips:
            check_number(name, getattr(self, name), above=0, optional=True)
        chosen = [name for name in clips if getattr(self, name) is not None]
        if len(chosen) > 1:
            raise ConfigError(f"{' and '.join(map(argument, chosen))} cannot be used together: choose one.")
        if self.plateau_patience is not None and self.schedule != "constant":
            raise ConfigError(
                f"{argument('plateau_patience')} lowers the learning rate by itself, so it needs "
                f"{argument('schedule', 'constant')}, not {self.schedule!r}: choose one of the two."
            )
        if self.jit_compile not in (True, False, "auto"):
            raise ConfigError(
                f"{argument('jit_compile')} must be True, False or 'auto', not {self.jit_compile!r}."
            )

    def curve_settings(self) -> dict[str, Any]:
        """The settings that shape the loss curve; a resumed run must have the same ones."""
        kept = {k: v for k, v in dataclasses.asdict(self).items() if k not in _FREE_ON_RESUME}
        if self.schedule != "constant":
            # A schedule is stretched over the whole run, so its length belongs to the curve.
            kept["epochs"] = self.epochs
        return kept
