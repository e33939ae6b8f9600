"""The time that a run may take to train, to judge, and in all.

Under a time limit, judging must not take many times as long as training, so each pass over held-out data has a share of
the limit. If a pass would need more, the run judges a sample, spread evenly over the data, and says so.
"""

from __future__ import annotations

import contextlib
import dataclasses
import math
import time
from typing import NamedTuple

import keras

from cellerate.data.arrays import BatchSource
from cellerate.data.pipeline import KerasBatches
from cellerate.data.windows import SampledBatches
from cellerate.format import duration
from cellerate.training.callbacks import Progress
from cellerate.training.parallel import Processes
from cellerate.training.settings import TrainingSettings

# A forecaster's run judges five times at least: before and after training, to calibrate, to test, and its intervals.
_OF_TRAINING, _OF_BUDGET = 0.25, 0.1
# A pass may always take this long: sampling a shorter pass would save too little.
_LEAST_S = 1.0
_LEAST_BATCHES = 4
# The passes over held-out data for which training leaves time in a time budget.
_PASSES_AFTER = 4


class SampleSize(NamedTuple):
    """The size of the sample of held-out data that was judged.

    Attributes:
        items: Windows, characters or lines.
        of: The approximate number of all items.
    """

    items: int
    of: int


@dataclasses.dataclass(frozen=True)
class TimeLimits:
    """The limits of a run.

    Attributes:
        judging_s: The most seconds that one pass over held-out data may take.
        ends: The time of `perf_counter` at which the run must end.
        words: The limits in words; "" without any.
    """

    judging_s: float = math.inf
    ends: float = math.inf
    words: str = ""

    @classmethod
    def of(cls, settings: TrainingSettings, began: float | None = None) -> TimeLimits:
        """The limits from the settings of a run that began at `began`, a time of `perf_counter`; None for now."""
        training, budget = settings.max_seconds, settings.time_budget
        limits = []
        judging_s, ends = math.inf, math.inf
        if training is not None:
            judging_s = _OF_TRAINING * training
            limits.append(f"at most {duration(training)} of training")
        if budget is not None:
            judging_s = min(judging_s, _OF_BUDGET * budget)
            ends = (time.perf_counter() if began is None else began) + budget
            limits.append(f"about {duration(budget)} in all")
        return cls(max(_LEAST_S, judging_s), ends, ", ".join(limits))

    def pass_s(self) -> float | None:
        """The most seconds that the next pass over held-out data may take; None without a limit."""
        if not self.words:
            return None
        return max(0.0, min(self.judging_s, self.ends - time.perf_counter()))

    def sentences(self, judged: SampleSize | None, item: str) -> list[str]:
        """Messages with the limits and the judged share of the validation part."""
        if not self.words:
            return []
        said = [f"time: {self.words}"]
        if judged is not None:
            said.append(
                f"judged on {judged.items:,} of {judged.of:,} {item} that are held out for validation, spread evenly: "
                f"a pass takes about {duration(self.judging_s)}"
            )
        return said

    def training_ends(self, judging_s: float) -> float:
        """The time at which training must end, if each pass over held-out data takes `judging_s` seconds."""
        return self.ends - _PASSES_AFTER * judging_s

    def training_s(self, settings: TrainingSettings, judging_s: float) -> float | None:
        """The most seconds that training may still take; None without a limit."""
        left = max(0.0, self.training_ends(judging_s) - time.perf_counter())
        most = left if settings.max_seconds is None else min(left, settings.max_seconds)
        return most if math.isfinite(most) else None

    def batches_to_judge(
        self, trainer: keras.Model, validation: BatchSource, processes: Processes, *, in_order: bool
    ) -> tuple[int, float]:
        """Measures how many batches can be judged in a pass.

        Args:
            trainer: The compiled model. Its weights do not change.
            validation: The batches.
            processes: The processes that train together; the first one's clock decides.
            in_order: See `SampledBatches`.

        Returns:
            The number of batches, 0 if there is time for all; and the seconds that a pass then takes.
        """
        count = len(validation)
        if not self.words or count <= _LEAST_BATCHES:
            return 0, 0.0

        def seconds(some: int) -> float:
            sample = processes.share(SampledBatches(validation, some, in_order=in_order))
            with contextlib.closing(KerasBatches(sample)) as batches:
                began = time.perf_counter()
                trainer.evaluate(batches, verbose=0)
                return time.perf_counter() - began

        seconds(1)  # compiles
        once = seconds(1)
        some = processes.of_first(max(2, min(count - 1, int(self.judging_s / 2 / once))))
        if hasattr(validation, "extremes"):
            seconds(some)  # compiles for the other lengths
        several = seconds(some)
        # A call of `evaluate` takes a while, however few batches it has.
        batch_s = max((several - once) / (some - 1), several / some / 4)
        fitting = processes.of_first(max(_LEAST_BATCHES, int(min(count, self.judging_s / batch_s))))
        return (0 if fitting >= count else fitting), min(fitting, count) * batch_s


def judged_part(
    trainer: keras.Model,
    validation: BatchSource | None,
    limits: TimeLimits,
    progress: Progress,
    processes: Processes,
    *,
    new: bool,
    in_order: bool,
) -> tuple[BatchSource | None, SampleSize | None]:
    """Chooses the batches that every epoch of a run is judged on.

    Args:
        trainer: The compiled model.
        validation: All of them, if there are any.
        limits: The time limits.
        progress: Keeps the choice: a run that goes on is judged on the same ones.
        processes: Those that train together.
        new: Whether the run begins.
        in_order: See `SampledBatches`.

    Returns:
        The batches of this process; and how many items that is of how many, or None if it is all of them.
    """
    if validation is None:
        return None, None
    if new:
        progress.judged_batches, progress.judging_s = limits.batches_to_judge(
            trainer, validation, processes, in_order=in_order
        )
    some = progress.judged_batches
    if not 0 < some < len(validation):
        return processes.share(validation), None
    each = validation.items_per_batch
    sample = SampledBatches(validation, some, in_order=in_order)
    return processes.share(sample), SampleSize(some * each, len(validation) * each)
