"""The trials of an exported model: batches of several sizes and lengths, and our own runtime's results for them."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from cellerate.errors import DataError, ModelError
from cellerate.program import Program
from cellerate.runtime.cell import narrowed
from cellerate.runtime.program import Engine

# The lengths tried if the steps are free.
_LENGTHS = (1, 2, 9, 40)
_WHERE_FREE = 2**31 - 1
ANY_ROWS = (1, 5)
"""The rows of batches for a model that takes any number."""
# If results grow beyond this, as with ReLUs they may from step to step, smaller inputs are drawn.
_CALM, _SCALES = 1e6, (1.0, 0.1, 0.01)
# Beyond this, one runtime may overflow float32 where another that rounds differently does not.
_NEAR_OVERFLOW = 1e30
Arrays = Mapping[str, np.ndarray]


class TrialBatch(NamedTuple):
    """A batch of a trial.

    Attributes:
        length: The size of the free axes; None if only the batch axis is free.
        inputs: The array of each input by its name.
        expected: The array of each output by its name.
    """

    length: int | None
    inputs: Arrays
    expected: Arrays


class Deviation(NamedTuple):
    """The distance of an exported model from ours.

    Attributes:
        error: The largest difference of two numbers, as a share of the output's largest number, or of 1 if that is
            larger.
        trials: The number of batches compared.
        shapes: Their rows and steps, in words.
    """

    error: float
    trials: int
    shapes: str


def trials_of(program: Program, batches: Sequence[int] = ANY_ROWS) -> list[TrialBatch]:
    """Batches that a program accepts, with its results in float32.

    Masked inputs have masked steps anywhere; one of several rows is masked whole. Lengths at which the results run away
    are left out if there are others.

    Args:
        program: The program.
        batches: The numbers of rows to try.

    Raises:
        ModelError: The program accepts none of the sizes.
    """
    engine = Engine(program)
    found: list[TrialBatch] = []
    for scale in _SCALES:
        found = _tried(engine, batches, scale)
        calm = [trial for trial in found if _is_calm(trial)]
        if calm:
            return calm
    return found


def _tried(engine: Engine, batches: Sequence[int], scale: float) -> list[TrialBatch]:
    """Batches of all lengths that the program accepts, of random numbers with the standard deviation `scale`."""
    program = engine.program
    found, reason = [], ""
    for batch, length in itertools.product(batches, _LENGTHS if _has_free_length(program) else (None,)):
        # Inputs of different lengths first, if the model accepts them.
        for apart in (True, False) if len(program.inputs) > 1 and length is not None else (False,):
            inputs = _inputs(program, batch, length or 1, scale, apart=apart)
            try:
                found.append(TrialBatch(length, inputs, engine.run(inputs)))
                break
            except DataError as error:
                reason = str(error)
    if not found:
        raise ModelError(f"the model takes none of the lengths {_LENGTHS}, so it cannot be tried: {reason}")
    return found


def _is_calm(trial: TrialBatch) -> bool:
    # NaN, the mean over a row that is masked whole, counts as calm.
    return all(not (np.abs(array) > _CALM).any() for array in trial.expected.values())


def sizes_of(program: Program, trials: list[TrialBatch]) -> dict[str, tuple[int | None, ...]]:
    """The shape of each output, with None for the batch and for a size that depends on the length of an input."""
    # A single length does not show which sizes depend on it.
    known = len({trial.length for trial in trials}) > 1 or not _has_free_length(program)
    sizes = {}
    for name in trials[0].expected:
        shapes = {trial.expected[name].shape for trial in trials}
        along = [set(each) for each in zip(*shapes, strict=True)]
        sizes[name] = tuple(
            along_axis.pop() if known and axis and len(along_axis) == 1 else None
            for axis, along_axis in enumerate(along)
        )
    return sizes


def deviation(trials: list[TrialBatch], run: Callable[[Arrays], Arrays]) -> Deviation:
    """Runs each batch in another runtime and compares.

    Args:
        trials: The batches.
        run: Returns the outputs by name.

    Returns:
        The deviation; infinite if a shape differs, or if one has a NaN or an infinity where the other's number is far
        from overflow.
    """
    worst = 0.0
    for trial in trials:
        found = run(trial.inputs)
        for name, right in trial.expected.items():
            worst = max(worst, _difference(found[name], right))
    rows = sorted({len(next(iter(trial.inputs.values()))) for trial in trials})
    lengths = sorted({trial.length for trial in trials if trial.length})
    tried = f"batches of {_listed(rows)} {'row' if rows == [1] else 'rows'}"
    if lengths:
        tried += f", {_listed(lengths)} steps"
    return Deviation(worst, len(trials), tried)


def own_int8_error(program: Program, trials: list[TrialBatch]) -> float:
    """The error of our own runtime with weights of 8 bits: the cost of rounding for this model."""
    return deviation(trials, Engine(narrowed(program, "int8"), "int8").run).error


def _listed(sizes: Sequence[int]) -> str:
    *first, last = map(str, sizes)
    return f"{', '.join(first)} and {last}" if first else last


def _difference(found: np.ndarray, right: np.ndarray) -> float:
    if found.shape != right.shape:
        return np.inf
    found, right = (np.asarray(array, np.float64) for array in (found, right))
    known, same = _in_range(right), _in_range(found)
    if (known & np.isnan(found)).any() or (same & np.isnan(right)).any():
        return np.inf
    edge = _NEAR_OVERFLOW / 1e6
    if (np.abs(right[known & ~same]) < edge).any() or (np.abs(found[same & ~known]) < edge).any():
        return np.inf
    known &= same
    if not known.any():
        return 0.0
    largest = max(1.0, float(np.abs(right[known]).max()))
    return float(np.abs(found[known] - right[known]).max()) / largest


def _in_range(array: np.ndarray) -> np.ndarray:
    """True where a number is so small that it overflows in no runtime."""
    return np.isfinite(array) & (np.abs(array) < _NEAR_OVERFLOW)


def _inputs(program: Program, batch: int, length: int, scale: float, *, apart: bool) -> dict[str, np.ndarray]:
    """The arrays of a trial; with `apart` each has another length, and none has 1, which would broadcast."""
    random = np.random.default_rng(batch * 1000 + length)
    mask_values: dict[int, Any] = {
        node.inputs["x"]: node.options["mask_value"] for node in program.nodes if node.op == "features_mask"
    }
    rows = _rows_of_tables(program)
    inputs = {}
    for place, (name, number) in enumerate(program.inputs.items()):
        options: Mapping[str, Any] = program.nodes[number].options
        own = length + 1 + place if apart else length
        shape = (batch, *(own if size == -1 else size for size in options["shape"][1:]))
        masked = random.random(shape[:2]) < 0.3
        masked[-1:] = batch > 1
        if options["dtype"] == "int32":
            values = random.integers(1, max(2, rows.get(number, 2)), shape)
            inputs[name] = np.where(masked.reshape(*masked.shape, *[1] * (len(shape) - 2)), 0, values).astype(
                np.int32
            )
        else:
            inputs[name] = (scale * random.standard_normal(shape)).astype(np.float32)
            if number in mask_values:
                inputs[name][masked] = mask_values[number]
    return inputs


def _rows_of_tables(program: Program) -> dict[int, int]:
    """For inputs that are ids, the number of rows of the smallest table that they index."""
    found: dict[int, int] = {}
    for node in program.nodes:
        if node.op == "embedding":
            source = node.inputs["ids"]
            while "x" in program.nodes[source].inputs:
                source = program.nodes[source].inputs["x"]
            found[source] = min(found.get(source, _WHERE_FREE), len(node.arrays["embeddings"]))
    return found


def _has_free_length(program: Program) -> bool:
    shapes: Iterable[Any] = (program.nodes[number].options["shape"] for number in program.inputs.values())
    return any(-1 in shape[1:] for shape in shapes)
