"""What a run keeps on disk, so that one that was interrupted goes on where it was."""

import dataclasses
from pathlib import Path

from pydantic import ConfigDict, TypeAdapter, ValidationError
from pydantic.dataclasses import dataclass

from cellerate.errors import ConfigError
from cellerate.files import atomic_write
from cellerate.optimize.judging import Judged
from cellerate.report.record import Candidate, Pass, TrainingStep

FILE_NAME = "state.json"


@dataclass(config=ConfigDict(extra="forbid"))
class Choices:
    """What was chosen so far.

    Attributes:
        implementation: Who computes the LSTM layers in training.
        policy: The dtype policy of training.
        batch_size: Rows of a training batch.
        accumulate: Batches whose gradients make one update.
        length: Time steps of a training row.
        precision: How a packed model keeps its matrices.
    """

    implementation: str
    policy: str
    batch_size: int
    accumulate: int
    length: int | None
    precision: str


@dataclass(config=ConfigDict(extra="forbid"))
class State:
    """A run so far.

    Attributes:
        identity: What a run that goes on must have in common with this one.
        choices: What was chosen.
        started: When it was begun, ISO 8601.
        seconds: What it took, all sessions together.
        passes: Those that ended.
        candidates: In the order in which they were made; the first is the original.
        judged: What each candidate was worth, by its id.
        training_steps: What was measured of training; the first is the baseline.
        explanation: Of the original: a layer, its kernel, and what would make it faster.
    """

    identity: dict[str, str]
    choices: Choices
    started: str
    seconds: float = 0.0
    passes: list[Pass] = dataclasses.field(default_factory=list)
    candidates: list[Candidate] = dataclasses.field(default_factory=list)
    judged: dict[str, Judged] = dataclasses.field(default_factory=dict)
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
    """The state of the run in a folder, or None if there is none.

    Args:
        folder: The folder of the run.
        identity: Of the run that would go on.

    Raises:
        ConfigError: The run there is another one, or its state is damaged.
    """
    path = folder / FILE_NAME
    try:
        state = _STATE.validate_json(path.read_bytes())
    except FileNotFoundError:
        return None
    except (ValidationError, OSError) as error:
        raise ConfigError(
            f"{path} cannot be read, or is no state of a run. Start anew with --restart, or choose another folder."
        ) from error
    differing = sorted(name for name in identity if state.identity.get(name) != identity[name])
    if differing:
        raise ConfigError(
            f"{folder} holds another run: {', '.join(differing)} differ. Choose another folder (-o), or start "
            "anew there with --restart."
        )
    return state
