"""Random programs are refused or run."""

import itertools
import random
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from cellerate.errors import CellerateError
from cellerate.program import OPERATIONS, Node, Program
from cellerate.runtime.cell import write_cell
from cellerate.runtime.packed import load
from cellerate.runtime.program.engine import Engine
from support.runtime.unchecked_programs import given, ones, unchecked

VALUES: tuple[Any, ...] = (
    *(None, True, False, -1, 0, 1, 2, 3, 7, 2**20, 2**31 - 1, 2**31, -(2**31), 2**63, 10**300),
    *(0.0, -0.0, 0.5, 1.0, -1.0, 1e30, 1e300, "", "x", "h", "relu", "softmax", "linear", "float32", "int32", "zero"),
    *((), (1,), (-1,), (2, -1), (-1, -1), (1, 2), (2, 1), (0,) * 5000, (1,) * 31, (1,) * 40, (2**31 - 1,) * 20),
)  # fmt: skip
SIZES = (1, 1, 2, 3, 4, 8, 12, 16)
OPTIONS: dict[type, tuple[Any, ...]] = {
    bool: (True, False),
    int: (-2, -1, 0, 1, 2, 3, 2**20),
    float: (0.0, 1e-3, 1.0),
    str: ("tanh", "sigmoid", "linear", "softmax", "float32", "int32", "zero", "previous_output", "h", "c"),
    tuple: ((1,), (-1,), (2, -1), (1, 2), (2, 1), (0,) * 5000, (-1, -1, 4), (-1, 2), (-1, 3, 1)),
    type(None): (None,),
}


def random_node(rng: random.Random, number: int) -> Node:
    """A node of any operation, mostly valid."""
    op = rng.choice([*OPERATIONS, "concatenate", "lstm", "dense", "embedding"])
    kind = OPERATIONS[op]
    names = [str(n) for n in range(rng.choice((1, 2, 3)))] if kind.inputs == ("*",) else kind.inputs
    inputs: dict[str, Any] = {
        name.rstrip("?"): rng.randrange(number) if rng.random() > 0.01 else rng.choice(VALUES)
        for name in names
        if not name.endswith("?") or rng.random() < 0.3
    }
    sizes = {axis: rng.choice(SIZES) for axis in "VEDHKNF"}
    sizes["G"] = 4 * sizes["H"]
    arrays = {
        name.rstrip("?"): ones(*(sizes[axis] if rng.random() > 0.02 else 5 for axis in axes))
        for name, axes in kind.arrays.items()
        if not name.endswith("?") or rng.random() < 0.5
    }
    options = {}
    for name, types in kind.options.items():
        wanted = rng.choice(types) if isinstance(types, tuple) else types
        options[name] = rng.choice(OPTIONS[wanted] if rng.random() > 0.02 else VALUES)
    if "return_sequences" in options:
        options |= {"activation": "tanh", "recurrent_activation": "sigmoid", "masked_output": "zero"}
    return Node(op, f"n{number}", inputs, arrays, options)


def random_program(rng: random.Random) -> Iterator[Program]:
    """Growing programs: the last node of each is random, all nodes before it are valid."""
    nodes = [
        given(-1, dtype="int32", name="ids"),
        given(-1, rng.choice(SIZES), name="numbers"),
        given(rng.choice(SIZES), name="vector"),
    ]
    for _ in range(rng.choice((3, 8, 20))):
        node = random_node(rng, len(nodes))
        program = unchecked([*nodes, node])
        yield program
        try:
            Engine(Program(program.nodes, program.outputs))
        except CellerateError:
            continue
        nodes.append(node)


def fuzz(path: Path, count: int, seed: int) -> Counter[str]:
    """Write, load and run `count` programs with inputs of several sizes; count how they ended."""
    rng = random.Random(seed)
    ends: Counter[str] = Counter()
    programs = itertools.chain.from_iterable(random_program(rng) for _ in itertools.count())
    for number, program in enumerate(itertools.islice(programs, count)):
        stage = "written"
        try:
            write_cell(path, program)
            stage = "loaded"
            model = load(path)
            rows, steps = rng.choice((0, 1, 2)), rng.choice((1, 2, 5))
            inputs = {}
            for name, shape in model.inputs.items():
                sizes = [rows, *(steps if size == -1 else size for size in shape[1:])]
                inputs[name] = np.zeros(sizes if np.prod(sizes, dtype=float) < 1e6 else [rows, 1], np.int32)
            stage = "run"
            found = model._engine.run(inputs)
            ends[f"{rows} rows"] += 1
            if rows:
                assert all(len(array) == rows for array in found.values())
                empty = model._engine.run({name: array[:0] for name, array in inputs.items()})
                assert {n: a.shape[1:] for n, a in empty.items()} == {
                    n: a.shape[1:] for n, a in found.items()
                }
                assert {n: a.dtype for n, a in empty.items()} == {n: a.dtype for n, a in found.items()}
            stage = "stepped"
            _ = model.steps
            ends["stepped"] += 1
        except CellerateError as error:
            assert len(str(error)) < 1000, error
            ends[f"not {stage}"] += 1
        except BaseException as error:
            raise AssertionError(f"program {number} of seed {seed}: {program}") from error
    return ends


def test_400_random_programs_are_refused_or_run(tmp_path):
    ends = fuzz(tmp_path / "a.cell", 400, seed=1)
    for end in ("not loaded", "not run", "not stepped", "0 rows", "1 rows", "2 rows"):
        assert ends[end] > 10, ends


@pytest.mark.slow
def test_20_000_random_programs_are_refused_or_run(tmp_path):
    ends = fuzz(tmp_path / "a.cell", 20_000, seed=2)
    assert ends["1 rows"] > 1000, ends


def test_every_operation_is_reached_by_random_programs():
    rng = random.Random(2)
    assert {random_node(rng, 3).op for _ in range(2000)} == OPERATIONS.keys()
