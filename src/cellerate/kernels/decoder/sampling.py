"""Drawing the next id on the native core: the rules that callers set, one draw, and how to cancel a generation."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Sequence

import numpy as np

from cellerate.errors import ConfigError, ModelError
from cellerate.kernels.decoder.arguments import MOST_STEPS, check_real, check_whole, float_array, ids_array
from cellerate.kernels.native import core

DIVERGED = (
    "the model gave a NaN or an infinity as a logit, so there is no distribution to draw from. Its training has "
    "diverged: go back to an earlier checkpoint, or train with a lower learning rate or gradient clipping."
)


class Cancellation:
    """Ends a generation that runs in another thread, between two ids.

    Attributes:
        flag: (1,) int32, not 0 once it is cancelled; the native loop reads it at every step.
    """

    def __init__(self) -> None:
        self.flag = np.zeros(1, np.int32)

    def cancel(self) -> None:
        """Makes the generation end with what it has."""
        self.flag[0] = 1

    @property
    def cancelled(self) -> bool:
        """True if `cancel` was called."""
        return bool(self.flag[0])


@dataclasses.dataclass(frozen=True)
class SamplingRules:
    """The rules by which the native core draws an id. Up to `min_p`, the rules apply in the order of the attributes.

    All arithmetic is in float64, as in `cellerate.runtime.text.sampling`, which does the same in NumPy. Random numbers
    come from Philox4x32-10, with the seed as key, and the position of the id and the stream as counter, so an id can be
    drawn again without those before it.

    Attributes:
        repetition_penalty: For ids that the penalty sees, divides logits above 0 and multiplies those below 0;
            1 for none.
        penalty_window: How many of the last ids the penalty sees; None for all.
        temperature: Divides the logits; 0 takes the likeliest id, and the lowest id among equally likely ones.
        top_k: Only this many of the likeliest ids can be drawn; None for all.
        top_p: Only the fewest likeliest ids that together have this share of what top_k left; 1 for all.
        min_p: Only ids at least this share as likely as the likeliest; 0 for all.
        seed: The key of the random numbers; at least 0 and below 2**64.
        stream: Which of several sequences drawn with one seed; at least 0 and below 2**64.

    Raises:
        ConfigError: A value is out of its range.

    Source:
        The penalty: Keskar et al., "CTRL", 2019. Philox: Salmon et al., "Parallel Random Numbers: As Easy as
        1, 2, 3", 2011.
    """

    repetition_penalty: float = 1.0
    penalty_window: int | None = None
    temperature: float = 1.0
    top_k: int | None = None
    top_p: float = 1.0
    min_p: float = 0.0
    seed: int = 0
    stream: int = 0

    def __post_init__(self) -> None:
        check_real("repetition_penalty", self.repetition_penalty, lambda x: x > 0, "above 0")
        check_real("temperature", self.temperature, lambda x: x >= 0, "of at least 0")
        check_real("top_p", self.top_p, lambda x: 0 < x <= 1, "above 0 and at most 1")
        check_real("min_p", self.min_p, lambda x: 0 <= x <= 1, "from 0 to 1")
        for name in ("penalty_window", "top_k"):
            if getattr(self, name) is not None:
                check_whole(name, getattr(self, name), 1, 2**62)
        for name in ("seed", "stream"):
            check_whole(name, getattr(self, name), 0, 2**64 - 1)

    def native(self) -> tuple[float, int, float, float, float, int, int, int]:
        """The rules as the native core takes them."""
        return (
            float(self.temperature),
            int(self.top_k or 0),
            float(self.top_p),
            float(self.min_p),
            float(self.repetition_penalty),
            int(self.penalty_window or 0),
            int(self.seed),
            int(self.stream),
        )


@dataclasses.dataclass(frozen=True)
class Request:
    """The request of one sequence of a generation.

    Attributes:
        count: How many ids at most, at least 0.
        rules: How they are drawn.
        position: Of the first id to draw, in its sequence; it and the seed determine the random number.
        previous: (N,) the ids so far, including the prompt's, for the penalty.
        stop_ids: Ids that end the sequence; they are neither returned nor read.
        cancellation: Ends the generation from another thread.
    """

    count: int
    rules: SamplingRules = SamplingRules()
    position: int = 0
    previous: Sequence[int] | np.ndarray = ()
    stop_ids: Iterable[int] = ()
    cancellation: Cancellation | None = None


@dataclasses.dataclass(frozen=True)
class Drawn:
    """The ids drawn for one sequence.

    Attributes:
        ids: (N,) int32.
        log_probabilities: (N,) float32, by the model itself: ln softmax of the logits, without any rule.
    """

    ids: np.ndarray
    log_probabilities: np.ndarray


def sample(
    logits: np.ndarray, rules: SamplingRules, position: int = 0, previous: Sequence[int] | np.ndarray = ()
) -> tuple[int, float]:
    """Draws one id, as `StepModel.generate` does.

    Args:
        logits: (V,) float32.
        rules: How to draw it.
        position: Its position in the sequence; the random number depends only on this and the rules' seed and stream.
        previous: The ids so far, for the penalty.

    Returns:
        The id, and its log probability by the model itself: ln softmax(logits), without any of the rules.

    Raises:
        DataError: An id of `previous` is negative.
        ModelError: The logits hold a NaN or an infinity.
    """
    logits = float_array("logits", logits, (None,))
    if logits.size == 0:
        raise ConfigError("logits has shape (0,); expected at least one.")
    check_whole("position", position, 0, 2**63 - 1)
    seen = ids_array("previous", previous, (None,), MOST_STEPS)
    drawn, log_probability = core().sample(logits, rules.native(), seen, position)
    if drawn < 0:
        raise ModelError(DIVERGED)
    return int(drawn), float(log_probability)
