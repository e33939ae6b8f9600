"""Any model whose layers look only back, one push of steps at a time: its program with the states going in and out.

A push gives what the whole sequence up to there would give, because every node either computes each step by itself or
is recurrent, and its last states begin its next push.
"""

import dataclasses
from collections.abc import Mapping
from typing import Any

from cellerate.errors import ModelError
from cellerate.program import LAST_STATES, RECURRENT, Node, Program

# Nodes that compute each step by itself, or a result for the last step from the last step.
_STEP_BY_STEP = (
    *("embedding", "unembedding", "ids_mask", "features_mask", "any_mask", "masked", "where"),
    *("dense", "activation"),
    *("layer_norm", "affine", "add", "subtract", "multiply", "average", "maximum", "minimum", "concatenate"),
)


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
        options = dict(node.options)
        read = [steps[source] for source in node.inputs.values() if steps[source]]
        steps[number] = max(read, default=0)
        if node.op == "input":
            shape: Any = options["shape"]
            steps[number] = shape[1] if len(shape) == 3 or options["dtype"] == "int32" else 0
            if steps[number] and len(shape) <= 3:
                options["shape"] = (shape[0], -1, *shape[2:])
        elif node.op in RECURRENT:
            _check_recurrent(node, reads_time=bool(steps[node.inputs["x"]]))
            if not options["return_sequences"]:
                steps[number] = 0
            # Before its first step that is not masked both are zeros, and after it the same.
            if options["masked_output"] == "previous_output":
                options["masked_output"] = "previous_state"
            units = node.arrays["recurrent_kernel"].shape[0]
            for state in _states(node):
                name = f"{state} {recurrent} {node.name}"
                states[name] = units
                nodes.append(Node("input", name, options={"shape": (-1, units), "dtype": "float32"}))
                inputs[f"{state}0"] = len(nodes) - 1
        elif node.op in LAST_STATES:
            steps[number] = 0
        elif steps[number] and (last := _of_last_step(node, steps[number])):
            options |= last
            steps[number] = 0
        elif steps[number] and node.op not in _STEP_BY_STEP and not _takes_features(node):
            raise ModelError(_refusal(node, f"{node.op} needs the whole sequence"))
        elif node.op == "concatenate" and steps[number] and options["axis"] not in (-1, 2):
            raise ModelError(_refusal(node, "it joins sequences along time"))
        nodes.append(dataclasses.replace(node, inputs=inputs, options=options))
        moved[number] = len(nodes) - 1
        if node.op in RECURRENT:
            for state in _states(node):
                nodes.append(_last_state(node, moved[number], state))
                added[f"{state} {recurrent} {node.name}"] = len(nodes) - 1
            recurrent += 1
    if not states:
        raise ModelError(
            "this model has no recurrent layer, so there is nothing to remember between two pushes."
        )
    own = {name: moved[number] for name, number in program.outputs.items()}
    return Stepping(Program(tuple(nodes), own | added), tuple(program.inputs), tuple(own), states)


def _of_last_step(node: Node, steps: int) -> dict[str, Any]:
    """The options that take the last step of a push, for a node that takes the last of `steps`; else empty."""
    options: Any = node.options
    # Of a sequence of any length (-1), only what counts from its end is surely the last step.
    last = (-1, steps - 1) if steps > 0 else (-1,)
    if node.op == "crop" and options["begin"] in last and options["end"] in (None, steps):
        return {"begin": -1, "end": None}
    if node.op == "take" and options["axis"] == 1 and options["indices"] in [(place,) for place in last]:
        return {"indices": (-1,)}
    return {}


def _takes_features(node: Node) -> bool:
    return node.op == "take" and node.options["axis"] == 2


def _states(node: Node) -> str:
    """The letters of a recurrent layer's states."""
    return "hc" if node.op == "lstm" else "h"


def _last_state(node: Node, number: int, state: str) -> Node:
    if node.op == "lstm":
        return Node("lstm_state", node.name, {"lstm": number}, options={"state": state})
    return Node("rnn_state", node.name, {"rnn": number})


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
