"""The record of an export format: its name, its needs, and the functions that write and open its files.

The command line makes its help from the records, so formats import NumPy and their packages only when they write or
open a file.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from cellerate.files import atomic_write

if TYPE_CHECKING:
    from cellerate.exports.trials import Arrays, TrialBatch
    from cellerate.program import Program


class ExportRuntime(Protocol):
    """An exported model in the runtime of its format."""

    def run(self, inputs: Arrays, /) -> Arrays:
        """The outputs by name."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class ExportSource:
    """The model to write.

    Attributes:
        programs: The program of each signature; the first one is the main one.
        trials: For each signature, the batches to try it on.
        metadata: Plain JSON, for the file's own metadata.
        rows: The only number of rows that the written model takes; None for any.
    """

    programs: Mapping[str, Program]
    trials: Mapping[str, list[TrialBatch]]
    metadata: Mapping[str, Any]
    rows: int | None

    @property
    def signature(self) -> str:
        """The name of the first signature."""
        return next(iter(self.programs))

    @property
    def program(self) -> Program:
        """The program of the first signature."""
        return self.programs[self.signature]


def one_program(program: Program, stateful: bool) -> dict[str, Program]:
    """Return the single signature of most formats; if `stateful`, it takes and returns the states."""
    return {"model": with_states(program) if stateful else program}


def one_file(target: Path) -> tuple[Path, AbstractContextManager[Path]]:
    """Return the path of a file, and the context that writes it whole or not at all."""
    return target, atomic_write(target)


@dataclasses.dataclass(frozen=True, kw_only=True)
class ExportFormat:
    """A format that models are exported to.

    Attributes:
        name: The value of `to`.
        suffix: The ending of its files; "" if it is a folder.
        packages: The packages that write or try it.
        extra: The extra of Cellerate that installs them.
        precisions: The precisions of weights that it has.
        tolerance: The largest error of a model in float32 in its runtime.
        runtime: The name of its runtime, for messages.
        write: Writes a model to a path, in a precision.
        open: Opens a signature of the written model in the runtime of the format.
        backend: The Keras backend that must run while the model is written; "" for any.
        fixed_rows: True if the written model takes a fixed number of rows.
        float32_first: True if a narrower model is tried in float32 first: errors there do not come from rounding.
        programs: Makes the program of each signature from the model's program and from `stateful`.
        place: Returns the path to write for a target, and the context that writes it whole or not at all.
        prove: Proves int8 weights exact on every processor, and returns the largest sum of two products; None if the
            format needs no proof.
        elsewhere: Tries the file in a further runtime, and returns the outcome in words.
    """

    name: str
    suffix: str
    packages: tuple[str, ...]
    extra: str
    precisions: tuple[str, ...]
    tolerance: float
    runtime: str
    write: Callable[[ExportSource, str, Path], None]
    open: Callable[[ExportSource, Path, str], ExportRuntime]
    backend: str = ""
    fixed_rows: bool = False
    float32_first: bool = False
    programs: Callable[[Program, bool], dict[str, Program]] = one_program
    place: Callable[[Path], tuple[Path, AbstractContextManager[Path]]] = one_file
    prove: Callable[[Path], int] | None = None
    elsewhere: Callable[[Path, list[TrialBatch]], str] | None = None


def with_states(program: Program) -> Program:
    """The program with the states of its LSTMs as inputs and outputs: h_0 and c_0 of the first LSTM, and so on."""
    from cellerate.program import Program
    from cellerate.runtime.program import stepping_of

    made = stepping_of(program)
    # The layers' names would not do: Keras numbers them anew in each process.
    names = {name: "_".join(name.split()[:2]) for name in made.states}
    nodes = tuple(
        dataclasses.replace(node, name=names[node.name])
        if node.op == "input" and node.name in names
        else node
        for node in made.program.nodes
    )
    outputs = {
        f"{names[name]}_next" if name in names else name: number
        for name, number in made.program.outputs.items()
    }
    return Program(nodes, outputs)
