"""The cases of `bench` and their contestants: a table with a row a contestant, ours and every peer that we know."""

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
"""The cases in order, and what each is in words."""
# Backward takes twice the products of forward.
_TRAINING = 3


@dataclasses.dataclass(frozen=True)
class Contestant:
    """Somebody who takes part in a case, in a process of its own.

    Attributes:
        name: Short; what follows a dash is the Keras backend.
        title: In words.
        ours: Whether Cellerate computes it.
        packages: What must be installed, by the names that are imported.
        python: The interpreter of another environment; "" for that of this process.
    """

    name: str
    title: str
    ours: bool = False
    packages: tuple[str, ...] = ()
    python: str = ""

    @property
    def missing(self) -> str:
        """Why it cannot take part; "" if it can, as far as can be seen from here."""
        # Another environment says so itself.
        packages = () if self.python else self.packages
        names = [repr(name) for name in packages if importlib.util.find_spec(name) is None]
        return f"not installed: {', '.join(names)}" if names else ""


def contestants(case: str, backends: Sequence[str] = BACKENDS, against: str = "") -> tuple[Contestant, ...]:
    """Who takes part in a case, ours first.

    Args:
        case: Of `CASES`.
        backends: The Keras backends to take.
        against: The interpreter of an environment with another version of Cellerate, which takes part beside ours.
    """
    here = _contestants(case, backends)
    there = (dataclasses.replace(one, python=against) for one in here if one.ours and against)
    # Both versions of a contestant have their turns one right after the other.
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
    """The operations of a character that cannot be avoided: those of the recurrent matrix and of the last layer.

    What a character's row of the embedding gives is the same every time, so its product with the kernel can be looked
    up; it is not counted.
    """
    forward = 2 * (4 * sizes.units**2 + sizes.units * sizes.vocabulary)
    return forward * (_TRAINING if case == "train" else 1)


@dataclasses.dataclass(frozen=True)
class BenchPlan:
    """The cases to run, and for how long.

    Attributes:
        cases: Of `CASES`, in their order.
        backends: The Keras backends that take part.
        sizes: Of the model.
        sessions: How often all contestants are started at most: what a process is like differs from start to start.
        rounds: How many turns each contestant has in a session.
        turn_s: How long a turn is, in seconds; each is at least three calls.
        turns: How many turns Cellerate has in a round, where it is to be known to a few percent; others have one.
        short_turns: How many, each of half as long, where its work is made anew for each.
        budget_s: No other session begins that would not end within it; the first always runs.
        between_s: The pause before a contestant's turn, in which the idle threads of the one before come to rest.
        limit_s: What a contestant may take to start, to compile and to try its ways.
        quick: Whether it only tries whether everything runs.
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
