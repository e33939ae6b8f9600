"""The files of a run, so that an interrupted run can continue where it stopped."""

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
        implementation: Which implementation computes the LSTM layers in training.
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
        identity: What a continued run must have in common with this one.
        choices: The choices made so far.
        started: The time of the start, ISO 8601.
        seconds: The time it took, all sessions together.
        apart: How far our kernels judge the original from Keras on a stretch of held-out data, as a share.
        process_s: About how many seconds a new process takes to open the model and the data.
        compile_s: About how many seconds it takes to compile a training there.
        judge_s: How many seconds it took to judge the original.
        first_judge_s: How many more it takes for a model that is judged for the first time, and is compiled for it.
        judged_share: The share of the held-out data that models are judged on.
        consider_s: How many seconds it took last to pack a model, to judge it and to time it.
        bfloat16: How many times as fast the largest LSTM layer trains in bfloat16 as in float32 on our kernels, turn by
            turn; empty if that was not measured.
        units: The units of that layer.
        passes: The finished stages, under the key that runs on disk have.
        candidates: The models in the order they were made; the first is the original.
        judged: The quality of each candidate on the validation part, by its id.
        tested: The quality on the test part of each model that a verdict was given on, by its id.
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
            f"{path} cannot be read, or is not the state of a run of this version. Start anew with "
            f"{argument('restart', True)}, or choose another folder ({argument('output')})."
        ) from error
    differing = sorted(name for name in identity if state.identity.get(name) != identity[name])
    if differing:
        raise ConfigError(
            f"{folder} holds another run: {', '.join(differing)} differ. Choose another folder "
            f"({argument('output')}), or start anew there with {argument('restart', True)}."
        )
    return state
