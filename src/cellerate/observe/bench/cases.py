"""The cases of `bench` and their contestants: a table with a row for each, ours and every known peer."""

from __future__ import annotations

import dataclasses
import importlib.util
from collections.abc import Sequence

from cellerate.machine.environment import BACKENDS
from cellerate.observe.bench.model import QUICK, Sizes

CASES = {
    "train": "A training step: forward, backward and Adam, in float32",
    "infer": "A trained model in use: a whole batch in one call",
    "generate": "One text, character by character",
}
"""The cases in order, each with a description."""
# The backward pass takes twice the products of the forward pass.
_TRAINING = 3


@dataclasses.dataclass(frozen=True)
class Contestant:
    """A contestant of a case, in a separate process.

    Attributes:
        name: A short name; the part after a dash is the Keras backend.
        title: The name in words.
        ours: True if Cellerate computes it.
        packages: The packages that must be installed, by their import names.
        python: The interpreter of another environment; "" for that of this process.
    """

    name: str
    title: str
    ours: bool = False
    packages: tuple[str, ...] = ()
    python: str = ""

    @property
    def missing(self) -> str:
        """The reason why it cannot take part, as far as this process can see; "" if it can."""
        # Another environment reports its own missing packages.
        packages = () if self.python else self.packages
        names = [repr(name) for name in packages if importlib.util.find_spec(name) is None]
        return f"not installed: {', '.join(names)}" if names else ""


def contestants(case: str, backends: Sequence[str] = BACKENDS, against: str = "") -> tuple[Contestant, ...]:
    """Return the contestants of a case, ours first.

    Args:
        case: One of `CASES`.
        backends: The Keras backends to take.
        against: The interpreter of an environment with another version of Cellerate, which takes part beside ours.
    """
    here = _contestants(case, backends)
    there = (dataclasses.replace(one, python=against) for one in here if one.ours and against)
    # Both versions of a contestant take their turns in direct succession.
    beside = {one.name: one for one in there}
    return tuple(each for one in here for each in (one, *([beside[one.name]] if one.name in beside else [])))


def _contestants(case: str, backends: Sequence[str]) -> tuple[Contestant, ...]:
    keras = [Contestant(f"keras-{name}", f"Keras on {name}", packages=("keras", name)) for name in backends]
    torch = Contestant("torch", "torch.nn.LSTM", packages=("torch",))
    if case == "train":
        ours = [
            Contestant(f"cellerate-{name}", f"Cellerate on {name}", ours=True, packages=("keras", name))
            for name in backends
        ]
        return (*ours, *keras, torch)
    onnx = ("onnx", "onnxruntime")
    return (
        Contestant("cellerate", "Cellerate", ours=True),
        *keras,
        torch,
        Contestant("onnxruntime", "ONNX Runtime", packages=onnx),
        Contestant("openvino", "OpenVINO", packages=("openvino", *onnx)),
        Contestant("litert", "LiteRT", packages=("ai_edge_litert",)),
    )


def least_operations(case: str, sizes: Sizes) -> int:
    """Return the unavoidable operations per character: the products with the recurrent matrix and the last layer.

    The product of a character's embedding with the kernel is always the same and can be looked up, so it does not
    count.
    """
    forward = 2 * (4 * sizes.units**2 + sizes.units * sizes.vocabulary)
    return forward * (_TRAINING if case == "train" else 1)


@dataclasses.dataclass(frozen=True)
class BenchPlan:
    """The cases to run, and their times.

    Attributes:
        cases: Names from `CASES`, in their order.
        backends: The Keras backends that take part.
        sizes: The sizes of the model.
        sessions: The most sessions. Each starts all contestants again, because speed differs from process to process.
        rounds: The turns of each contestant in a session.
        turn_s: The seconds of a turn; each is at least three calls.
        turns: The turns of Cellerate in a round if its speed must be known to a few percent; others have one.
        short_turns: The number of half as long turns, if the work is built again for each turn.
        budget_s: The seconds in which further sessions must end; the first session always runs.
        between_s: The pause before a contestant's turn, in which the threads of the previous one come to rest.
        limit_s: The seconds in which a contestant must start, compile and try its ways.
        quick: True if the run only checks that everything works.
        against: The interpreter of an environment with another version of Cellerate; "" for none.
    """

    cases: tuple[str, ...] = tuple(CASES)
    backends: tuple[str, ...] = BACKENDS
    sizes: Sizes = dataclasses.field(default_factory=Sizes)
    sessions: int = 5
    rounds: int = 3
    turn_s: float = 0.1
    turns: int = 2
    short_turns: int = 4
    budget_s: float = 540.0
    between_s: float = 0.25
    limit_s: float = 90.0
    quick: bool = False
    against: str = ""


def quick_plan(plan: BenchPlan) -> BenchPlan:
    """The same with a tiny model and one short session."""
    short = {"sessions": 1, "rounds": 2, "turn_s": 0.005, "turns": 1, "short_turns": 1, "between_s": 0.0}
    return dataclasses.replace(plan, sizes=QUICK, quick=True, **short)  # type: ignore[arg-type]
