"""Calls of a packed model, prepared once for arrays of known shapes and types.

The engine caches prepared calls, so that only the first call of its kind is checked in full.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Hashable, Mapping, Sequence
from typing import Any

import numpy as np

from cellerate.errors import ConfigError, DataError
from cellerate.kernels.program.cpu import CompiledProgram, PreparedRun, Sizes
from cellerate.messages import argument
from cellerate.program import Program

Inputs = Mapping[str, np.ndarray] | np.ndarray
"""The array of each input by its name, or one array if there is one input."""
Out = Mapping[str, np.ndarray] | np.ndarray | None
"""Where results go: the array of each output by its name, or one array if there is one output; None for new ones."""
_FLOAT32 = np.dtype(np.float32)


@dataclasses.dataclass(frozen=True, slots=True)
class Prepared:
    """A call on the native core.

    Attributes:
        compiled: The program on the core.
        sizes: The sizes that the program needs.
        places: The indices of its inputs among the arrays of the call.
        results: Each output's name, its index among the program's results, and its shape.
    """

    compiled: CompiledProgram
    sizes: Sizes
    places: tuple[int, ...]
    results: tuple[tuple[str, int, tuple[int, ...]], ...]

    def run(self, arrays: Sequence[np.ndarray], out: Out) -> dict[str, np.ndarray]:
        """Runs it on arrays of these shapes and types, C-contiguous.

        Raises:
            ConfigError, DataError: `out` does not fit.
            IndexError: An id is not a row of its table, or counts from the end.
        """
        inputs = [arrays[place] for place in self.places]
        if len(self.results) == 1 and (out is None or type(out) is np.ndarray):
            return self._run_one(inputs, out)
        if out is None:
            found = {name: np.empty(shape, np.float32) for name, _, shape in self.results}
        else:
            found = checked_out(out, {name: (shape, "float32") for name, _, shape in self.results})
            direct = (each.flags.c_contiguous for each in found.values())
            if not all(direct) or _overlap(list(found.values()), inputs):
                for name, array in self.run(arrays, None).items():
                    np.copyto(found[name], array)
                return found
        made: list[Any] = [None] * len(found)
        for name, place, _ in self.results:
            made[place] = found[name]
        self.compiled.run(self.sizes, inputs, made)
        return found

    def alone(
        self, names: Sequence[str], states: Mapping[str, tuple[np.ndarray, np.ndarray]]
    ) -> tuple[PreparedRun, tuple[int, ...]] | None:
        """Return the call for loops, which passes only arrays that are not states, and the shape of its result.

        Args:
            names: The names of the arrays of the call, in order.
            states: Two arrays for each state by its name, which is that of an input and of an output, as
                `CompiledProgram.prepared_run` takes them.

        Returns:
            None unless exactly one input and one output are left beside the states.
        """
        places = {names[place]: n for n, place in enumerate(self.places)}
        results = {name: place for name, place, _ in self.results}
        free = (
            [name for name in places if name not in states],
            [name for name in results if name not in states],
        )
        if [len(each) for each in free] != [1, 1] or not states.keys() <= places.keys() & results.keys():
            return None
        (x,), (result,) = free
        shape = next(shape for name, _, shape in self.results if name == result)
        pairs = [(places[name], results[name], *arrays) for name, arrays in states.items()]
        run = self.compiled.prepared_run(shape[0], self.sizes, places[x], results[result], pairs)
        return run, shape

    def _run_one(self, inputs: Sequence[np.ndarray], out: np.ndarray | None) -> dict[str, np.ndarray]:
        """Run with one result, the usual case in loops."""
        ((name, _, shape),) = self.results
        if out is None:
            result = np.empty(shape, np.float32)
        elif fits(out, shape, _FLOAT32) and out.flags.writeable and not _overlap([out], inputs):
            result = out
        else:
            checked_out(out, {name: (shape, "float32")})
            np.copyto(out, self._run_one(inputs, None)[name])
            return {name: out}
        self.compiled.run(self.sizes, inputs, (result,))
        return {name: result}


def signature(inputs: Inputs, outputs: Sequence[str] | None) -> tuple[Hashable, tuple[np.ndarray, ...]]:
    """Return the key of a prepared call and its arrays; the key is None if the arrays must be checked first."""
    if outputs is not None:
        if type(outputs) not in (list, tuple) or not all(type(name) is str for name in outputs):
            return None, ()
        outputs = tuple(outputs)
    if type(inputs) is np.ndarray:
        if not inputs.flags.c_contiguous:
            return None, ()
        return (outputs, inputs.shape, inputs.dtype), (inputs,)
    if type(inputs) is not dict:
        return None, ()
    arrays = tuple(inputs.values())
    if not all(type(array) is np.ndarray and array.flags.c_contiguous for array in arrays):
        return None, ()
    return (outputs, *((name, array.shape, array.dtype) for name, array in inputs.items())), arrays


def checked_out(out: Out, wanted: Mapping[str, tuple[tuple[int, ...], str]]) -> dict[str, np.ndarray]:
    """The caller's arrays for the results by name; none if there is no `out`.

    Args:
        out: As the caller gives it.
        wanted: Each output's shape and dtype.

    Raises:
        ConfigError: The names are not those of the outputs.
        DataError: An array has another shape or dtype, or cannot be written.
    """
    if out is None:
        return {}
    if not isinstance(out, Mapping):
        if len(wanted) > 1:
            raise ConfigError(
                f"out must be a dict of arrays by name, because the outputs are {', '.join(wanted)}, not one "
                f"{type(out).__name__}."
            )
        out = dict.fromkeys(wanted, out)
    if set(out) != set(wanted):
        raise ConfigError(
            f"out must have an array for each of {', '.join(wanted)}, not {', '.join(map(str, out))}."
        )
    for name, (shape, dtype) in wanted.items():
        array = out[name]
        if not isinstance(array, np.ndarray) or array.shape != shape or array.dtype != dtype:
            found = f"{array.shape} {array.dtype}" if isinstance(array, np.ndarray) else type(array).__name__
            raise DataError(f"out: expected an array {shape} {dtype} for {name!r}, got {found}.")
        if not array.flags.writeable:
            raise DataError(f"out: the array for {name!r} is read-only; give one that can be written.")
    return {name: out[name] for name in wanted}


def _overlap(results: Sequence[np.ndarray], inputs: Sequence[np.ndarray]) -> bool:
    """True if a result may share memory with an input or with another result."""
    return any(
        np.may_share_memory(one, other)
        for place, one in enumerate(results)
        for other in (*inputs, *results[:place])
    )


def fits(array: Any, shape: tuple[int, ...], dtype: np.dtype[Any]) -> bool:
    """True if it is an array that the core can read as it is."""
    return (
        isinstance(array, np.ndarray)
        and array.shape == shape
        and array.dtype == dtype
        and array.flags.c_contiguous
    )


def input_sizes(
    program: Program, batch: int, steps: int | None, *, free_only: bool = False
) -> dict[str, tuple[tuple[int, ...], str]]:
    """The shape and dtype of each input of a call.

    Args:
        program: Says which sizes are free.
        batch: Rows of a call.
        steps: The size of the first axis after the batch, where it is a time axis; None if no size is free.
        free_only: If True, `steps` applies to free sizes only, and another fixed size is not an error.

    Raises:
        ConfigError: A size is not a whole number above 0, is missing, does not fit the model, or needs more memory
            than the machine has.
    """
    # Not at the top: loading a model does not read these modules.
    from cellerate.format import size
    from cellerate.machine.environment import memory_bytes

    for name, count in (("batch", batch), ("steps", steps)):
        if count is not None and (isinstance(count, bool) or not isinstance(count, int) or count < 1):
            raise ConfigError(f"{argument(name)} must be a whole number from 1 on, not {count!r}.")
    found: dict[str, tuple[tuple[int, ...], str]] = {}
    for name, number in program.inputs.items():
        options: Any = program.nodes[number].options
        shape: list[int] = list(options["shape"])
        text = f"input {name!r} of shape {tuple(shape)}, where -1 is any size"
        if shape[0] not in (-1, batch):
            raise ConfigError(f"batch must be {shape[0]} for {text}, not {batch}.")
        shape[0] = batch
        # Ids have a time axis and no other; numbers have their features last.
        timed = len(shape) > (1 if options["dtype"] == "int32" else 2)
        if timed and steps is not None and not free_only and shape[1] not in (-1, steps):
            raise ConfigError(f"{argument('steps')} must be {shape[1]} for {text}, not {steps}.")
        if timed and shape[1] == -1 and steps is not None:
            shape[1] = steps
        if -1 in shape:
            fix = "give steps" if timed and shape[1] == -1 else "use predict"
            raise ConfigError(f"the size of a call is not known for {text}: {fix}.")
        needed = np.dtype(options["dtype"]).itemsize * math.prod(shape)
        if needed > memory_bytes():
            counts = [argument(one, count) for one, count in (("batch", batch), ("steps", steps)) if count]
            raise ConfigError(
                f"{' and '.join(counts)} would need {size(needed)} of memory for {text}, and this machine has "
                f"{size(memory_bytes())}: give smaller values."
            )
        found[name] = (tuple(shape), options["dtype"])
    return found
