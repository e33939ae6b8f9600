"""The files of a run, so that an interrupted run can continue where it stopped."""

from __future__ import annotations

import dataclasses
from pathlib import Path

from pydantic import ConfigDict, TypeAdapter, ValidationError
from pydantic.dataclasses import dataclass

from cellerate.errors import ConfigError
from cellerate.files import atomic_write
from cellerate.messages import argument
from cellerate.optimization.judging import Judged
from cellerate.report.record import Candidate, StageRecord, TrainingStep

FILE_NAME = "state.json"


@dataclass(config=ConfigDict(extra="forbid"))
class Choices:
    """The choices made so far.

    Attributes:
        implementation: The implementation of the LSTM layers in training.
        training_precision: The Keras dtype policy of training.
        batch_size: Rows per training batch.
        accumulate: How many batches share one update.
        length: Time steps per training row.
        packed_precision: How a packed model keeps its matrices, one of `program.PRECISIONS`.
    """

    implementation: str
    training_precision: str
    batch_size: int
    accumulate: int
    length: int | None
    packed_precision: str


@dataclass(config=ConfigDict(extra="forbid"))
class State:
    """The state of a run.

    Attributes:
        identity: The values that a continued run must share with this one.
        choices: The choices made so far.
        started: The time of the start, ISO 8601.
        seconds: The seconds of all sessions together.
        apart: The difference between the judgements of our kernels and of Keras on held-out data, as a share.
        process_s: About the seconds in which a new process opens the model and the data.
        compile_s: About the seconds to compile a training there.
        judge_s: The seconds to judge the original.
        first_judge_s: The extra seconds of a model's first judgement, which compiles it.
        judged_share: The share of the held-out data that models are judged on.
        consider_s: The seconds that the last model took to be packed, judged and timed.
        bfloat16: The speed of the largest LSTM layer's training in bfloat16 over float32 on our kernels, turn by
            turn; empty if it was not measured.
        units: The units of that layer.
        passes: The finished stages; files of runs have this key.
        candidates: The models in the order they were made; the first is the original.
        judged: The quality of each candidate on the validation part, by its id.
        tested: The quality on the test part of each model that a verdict judged, by its id.
        further_steps: How many steps candidates are trained further; None until a stage needs to know.
        training_steps: The measurements of training; the first is the baseline.
        explanation: For each layer of the original: the layer, its kernel, and what would make it faster.
    """

    identity: dict[str, str]
    choices: Choices
    started: str
    seconds: float = 0.0
    apart: float = 0.0
    process_s: float = 5.0
    compile_s: float = 2.0
    judge_s: float = 0.0
    first_judge_s: float = 0.0
    judged_share: float = 1.0
    consider_s: float | None = None
    bfloat16: tuple[float, ...] = ()
    units: int = 0
    passes: list[StageRecord] = dataclasses.field(default_factory=list)
    candidates: list[Candidate] = dataclasses.field(default_factory=list)
    judged: dict[str, Judged] = dataclasses.field(default_factory=dict)
    tested: dict[str, Judged] = dataclasses.field(default_factory=dict)
    further_steps: int | None = None
    training_steps: list[TrainingStep] = dataclasses.field(default_factory=list)
    explanation: list[tuple[str, str, str]] = dataclasses.field(default_factory=list)


_STATE: TypeAdapter[State] = TypeAdapter(State)


def save_state(state: State, folder: Path) -> None:
    """Writes the state of a run into its folder, whole or not at all.

    Raises:
        OutputError: The file could not be written.
    """
    with atomic_write(folder / FILE_NAME) as beside:
        beside.write_bytes(_STATE.dump_json(state, indent=1))


def load_state(folder: Path, identity: dict[str, str]) -> State | None:
    """Return the state of the run in a folder, or None if there is none.

    Args:
        folder: The folder of the run.
        identity: The identity of the run that wants to continue.

    Raises:
        ConfigError: The folder has another run, or its state is damaged.
    """
    path = folder / FILE_NAME
    try:
        state = _STATE.validate_json(path.read_bytes())
    except FileNotFoundError:
        return None
    except (ValidationError, OSError) as error:
        raise ConfigError(
            f"{path} cannot be read, or is not the state of a run of this version. Start again with "
            f"{argument('restart', True)}, or choose another folder ({argument('output')})."
        ) from error
    differing = sorted(name for name in identity if state.identity.get(name) != identity[name])
    if differing:
        raise ConfigError(
            f"{folder} holds another run: {', '.join(differing)} differ. Choose another folder "
            f"({argument('output')}), or start anew there with {argument('restart', True)}."
        )
    return state
