"""A causal model, one push of steps at a time: its program takes and returns the states.

A push gives the same results as the whole sequence so far, because every node either computes each step by itself or is
recurrent, and its last states begin its next push.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

from cellerate.errors import ModelError
from cellerate.program import NORMALIZERS, OPERATIONS, Node, Program, Shape

_PUSHES = (2, 3)
"""The steps of the pushes whose sizes are followed: two numbers show which sizes are steps."""


@dataclasses.dataclass(frozen=True)
class Stepping:
    """A program of one push.

    Attributes:
        program: The model's program for any number of steps, with one more input and output for each state.
        inputs: The names of the model's own inputs.
        outputs: The names of the model's own outputs.
        states: The names of the states, each an input and an output, with its units: h and c of each LSTM, h of each
            GRU and SimpleRNN, and x, the last steps that a causal convolution read, in order.
    """

    program: Program
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    states: Mapping[str, int]


def stepping_of(program: Program) -> Stepping:
    """Make a program that takes steps as they come.

    Raises:
        ModelError: A layer needs future steps, and the message names it; or no layer remembers earlier steps.
    """
    push = _Push()
    for node in program.nodes:
        push.add(node)
    if not push.states:
        raise ModelError(
            "this model has no recurrent layer and no causal convolution, so there is nothing to remember between two "
            "pushes."
        )
    own = {name: push.moved[number] for name, number in program.outputs.items()}
    return Stepping(
        Program(tuple(push.nodes), own | push.added), tuple(program.inputs), tuple(own), push.states
    )


class _Push:
    """The nodes of a push, built from a model's nodes one after the other.

    Attributes:
        nodes: The nodes so far.
        moved: The index in `nodes` of each of the model's nodes.
        states: The names of the states, with their units.
        added: The name of each state → the node that gives its value after the push.
    """

    def __init__(self) -> None:
        self.nodes: list[Node] = []
        self.moved: list[int] = []
        self.states: dict[str, int] = {}
        self.added: dict[str, int] = {}
        # The shapes of a row of each node, in each of `_PUSHES`.
        self._rows: list[list[Shape]] = []
        # The steps of each node in the model itself: -1 for any number, 0 for nodes without a time axis.
        self._steps: list[int] = []
        self._remembering = 0  # layers so far

    def add(self, node: Node) -> None:
        """Adds the model's next node.

        Raises:
            ModelError: Its result is not known step by step.
        """
        inputs = {name: self.moved[source] for name, source in node.inputs.items()}
        options, row = dict(node.options), OPERATIONS[node.op]
        steps = max(
            (self._steps[source] for source in node.inputs.values() if self._steps[source]), default=0
        )
        if node.op == "input":
            shape: Any = options["shape"]
            # After its steps an input may have more axes, for layers that work inside each step.
            whole = options["dtype"] == "int32"
            steps = shape[1] if len(shape) >= 3 or (whole and len(shape) == 2) else 0
            if steps:
                options["shape"] = (shape[0], -1, *shape[2:])
        elif row.states:
            _check_recurrent(node, reads_time=bool(self._steps[node.inputs["x"]]))
            steps = steps if options["return_sequences"] else 0
            # Both are zeros before the first unmasked step, and equal after it.
            if options["masked_output"] == "previous_output":
                options["masked_output"] = "previous_state"
            for state in row.states:
                inputs[f"{state}0"] = self._state(node, state, node.arrays["recurrent_kernel"].shape[0])
        elif row.state_of:
            steps = 0
        elif steps:
            try:
                stepped = row.step(node, steps)
            except ValueError as error:
                raise ModelError(_refusal(node, str(error))) from None
            options |= stepped.options
            steps *= stepped.sequence
            if stepped.earlier[0]:
                inputs["x"] = self._with_earlier(node, inputs["x"], *stepped.earlier)
            if _reads_last_axis(node) and len({row[-1] for row in self._rows[inputs["x"]]}) > 1:
                raise ModelError(_refusal(node, "it works along time"))
        self._steps.append(steps)
        self.moved.append(self._node(dataclasses.replace(node, inputs=inputs, options=options)))
        if steps and any(row[0] != push for row, push in zip(self._rows[-1], _PUSHES, strict=True)):
            raise ModelError(_refusal(node, "it gives another number of steps than it reads"))
        for state in row.states:
            self.added[f"{state} {self._remembering} {node.name}"] = self._node(
                _last_state(node, self.moved[-1], state)
            )
        self._remembering += bool(row.states)

    def _node(self, node: Node) -> int:
        self._rows.append([self._row(node, place) for place in range(len(_PUSHES))])
        self.nodes.append(node)
        return len(self.nodes) - 1

    def _row(self, node: Node, place: int) -> Shape:
        """The shape of a row of a node in one of `_PUSHES`."""
        if node.op == "input":
            sizes: Any = node.options["shape"][1:]
            return tuple(_PUSHES[place] if size == -1 else size for size in sizes)
        if node.op == "unembedding":
            # A runtime calls the transposed table its kernel.
            node = dataclasses.replace(node, arrays={"kernel": node.arrays["embeddings"].T})
        try:
            read = {name: self._rows[source][place] for name, source in node.inputs.items()}
            return OPERATIONS[node.op].shape(node, read)
        except ValueError as error:
            why = f"it does not take pushes of {_PUSHES[place]} steps ({error})"
            raise ModelError(_refusal(node, why)) from error

    def _state(self, node: Node, state: str, units: int) -> int:
        """The input of a state of the layer that is being added."""
        name = f"{state} {self._remembering} {node.name}"
        self.states[name] = units
        return self._node(Node("input", name, options={"shape": (-1, units), "dtype": "float32"}))

    def _with_earlier(self, node: Node, x: int, steps: int, features: int) -> int:
        """Return the steps of a push after the earlier steps, whose last ones a state keeps for the next push."""
        kept = self._state(node, "x", steps * features)
        name, self._remembering = f"x {self._remembering} {node.name}", self._remembering + 1
        before = self._node(Node("reshape", node.name, {"x": kept}, options={"shape": (steps, features)}))
        both = self._node(Node("concatenate", node.name, {"0": before, "1": x}, options={"axis": 1}))
        last = self._node(Node("crop", node.name, {"x": both}, options={"begin": -steps, "end": None}))
        flat = Node("reshape", node.name, {"x": last}, options={"shape": (steps * features,)})
        self.added[name] = self._node(flat)
        return both


def _last_state(node: Node, number: int, state: str) -> Node:
    op, row = next((op, row) for op, row in OPERATIONS.items() if node.op in row.state_of)
    options = {"state": state} if "state" in row.options else {}
    return Node(op, node.name, {row.inputs[0]: number}, options=options)


def _reads_last_axis(node: Node) -> bool:
    """Return True for an operation whose results each need the whole last axis, whatever its size."""
    return node.op == "layer_norm" or node.options.get("activation") in NORMALIZERS


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
