"""Any model whose layers look only back, one push of steps at a time: its program with the states going in and out.

A push gives what the whole sequence up to there would give, because every node either computes each step by itself or
is recurrent, and its last states begin its next push.
"""

import dataclasses
from collections.abc import Mapping
from typing import Any

from cellerate.errors import ModelError
from cellerate.program import OPERATIONS, Node, Program


@dataclasses.dataclass(frozen=True)
class Stepping:
    """A program of one push.

    Attributes:
        program: The model's, whose inputs take any number of steps, with an input and an output more for each state.
        inputs: The names of the model's own inputs.
        outputs: The names of the model's own outputs.
        states: The names of the states, each an input and an output, with its units: h and c of each LSTM, h of each
            GRU and SimpleRNN, in order.
    """

    program: Program
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    states: Mapping[str, int]


def stepping_of(program: Program) -> Stepping:
    """Makes a program that takes steps as they come.

    Raises:
        ModelError: A layer needs steps that are still to come, or there is no recurrent layer to remember those before;
            the message names it.
    """
    nodes: list[Node] = []
    moved: dict[int, int] = {}
    states: dict[str, int] = {}
    # How many steps each node has in the model itself: -1 for any number, 0 for those that are not over time.
    steps: dict[int, int] = {}
    added: dict[str, int] = {}
    recurrent = 0  # layers so far
    for number, node in enumerate(program.nodes):
        inputs = {name: moved[source] for name, source in node.inputs.items()}
        options, row = dict(node.options), OPERATIONS[node.op]
        read = [steps[source] for source in node.inputs.values() if steps[source]]
        steps[number] = max(read, default=0)
        if node.op == "input":
            shape: Any = options["shape"]
            steps[number] = shape[1] if len(shape) == 3 or options["dtype"] == "int32" else 0
            if steps[number] and len(shape) <= 3:
                options["shape"] = (shape[0], -1, *shape[2:])
        elif row.states:
            _check_recurrent(node, reads_time=bool(steps[node.inputs["x"]]))
            if not options["return_sequences"]:
                steps[number] = 0
            # Before its first step that is not masked both are zeros, and after it the same.
            if options["masked_output"] == "previous_output":
                options["masked_output"] = "previous_state"
            units = node.arrays["recurrent_kernel"].shape[0]
            for state in row.states:
                name = f"{state} {recurrent} {node.name}"
                states[name] = units
                nodes.append(Node("input", name, options={"shape": (-1, units), "dtype": "float32"}))
                inputs[f"{state}0"] = len(nodes) - 1
        elif row.state_of:
            steps[number] = 0
        elif steps[number]:
            try:
                stepped = row.step(node, steps[number])
            except ValueError as error:
                raise ModelError(_refusal(node, str(error))) from None
            options |= stepped.options
            steps[number] *= stepped.sequence
        nodes.append(dataclasses.replace(node, inputs=inputs, options=options))
        moved[number] = len(nodes) - 1
        for state in row.states:
            nodes.append(_last_state(node, moved[number], state))
            added[f"{state} {recurrent} {node.name}"] = len(nodes) - 1
        recurrent += bool(row.states)
    if not states:
        raise ModelError(
            "this model has no recurrent layer, so there is nothing to remember between two pushes."
        )
    own = {name: moved[number] for name, number in program.outputs.items()}
    return Stepping(Program(tuple(nodes), own | added), tuple(program.inputs), tuple(own), states)


def _last_state(node: Node, number: int, state: str) -> Node:
    op, row = next((op, row) for op, row in OPERATIONS.items() if node.op in row.state_of)
    options = {"state": state} if "state" in row.options else {}
    return Node(op, node.name, {row.inputs[0]: number}, options=options)


def _check_recurrent(node: Node, *, reads_time: bool) -> None:
    if not reads_time:
        raise ModelError(_refusal(node, "it reads a sequence that the model makes itself"))
    if node.options["go_backwards"]:
        raise ModelError(_refusal(node, "it reads backwards, as in a Bidirectional layer"))
    if "h0" in node.inputs:
        raise ModelError(_refusal(node, "its first state comes from another layer"))


def _refusal(node: Node, why: str) -> str:
    return (
        f"{node.name}: {why}, so its results are not known step by step; use predict on whole sequences, or a "
        "model whose layers only look back."
    )
