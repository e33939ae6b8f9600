"""Next-token models that are not a chain (`decoder_chain`), one time step at a time; their layers only look back.

A causal convolution keeps the steps of its window in the state, a GRU its h. Each drawn id is a call of the program and
a call that draws, so small models take several times as long as a chain, whose loop is one native call.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

import numpy as np

from cellerate.errors import ModelError
from cellerate.kernels import native
from cellerate.kernels.decoder import sampling as native_sampling
from cellerate.kernels.decoder.contract import CheckedRequest, Steps
from cellerate.kernels.program.cpu import takes
from cellerate.messages import argument
from cellerate.program import NORMALIZERS, Program
from cellerate.runtime.program import Engine, smallest_tables, stepping_of
from cellerate.runtime.streams import Streams
from cellerate.runtime.text import sampling
from cellerate.runtime.text.decoder_chain import check_one_of_each, in_words, refusal

# Positions that a call reads: enough to hide its cost, and few enough to bound the memory of their logits.
_POSITIONS_AT_ONCE = 256


class ProgramSteps(Steps):
    """A next-token model as a program that takes and returns its states.

    Reading gives the bits of stepping, and no row depends on the rows beside it.

    Args:
        program: What the model computes: ids (B, T), or one-hot vectors (B, T, V), to logits or a softmax (B, T, V), or
            (B, V) for the last step alone.
        precision: How the core keeps and multiplies matrices, one of `program.PRECISIONS`.

    Raises:
        ModelError: The model is not a next-token model, or a layer needs future steps; the message says which.
    """

    rows_at_once = 64
    most_drawn = 256

    def __init__(self, program: Program, precision: str) -> None:
        self.precision = precision
        check_one_of_each(program)
        self._stepping = stepping_of(_without_softmax(program))
        self._engine = Engine(self._stepping.program, precision)
        self.state_size = sum(self._stepping.states.values())
        (name,), (output,) = self._stepping.inputs, self._stepping.outputs
        number = self._stepping.program.inputs[name]
        options = self._stepping.program.nodes[number].options
        table = smallest_tables(self._stepping.program.nodes).get(number)
        self._one_hot = len(options["shape"]) == 3 and options["dtype"] == "float32"
        if table is None and not self._one_hot:
            raise refusal(f"its input of the shape {options['shape']} holds neither ids nor one-hot vectors")
        self.vocabulary_size = int(options["shape"][2]) if table is None else len(table.arrays["embeddings"])
        states = {state: (1, units) for state, units in self._stepping.states.items()}
        width = (self.vocabulary_size,) if self._one_hot else ()
        made, longer = (
            self._engine.result_sizes({name: (1, steps, *width), **states}, [output])[output][0]
            for steps in (1, 2)
        )
        self._every_step, self.outputs = len(made) == 3, made[-1]
        alike = made[-1] == longer[-1] and (not self._one_hot or self.outputs == self.vocabulary_size)
        if len(made) not in (2, 3) or not alike:
            raise refusal(
                f"its input has the shape {options['shape']} and a step of its output {made}, not (batch, "
                "vocabulary); one-hot vectors are as wide as the output"
            )

    def check_core(self) -> None:
        """Check that the native core runs all of the program; otherwise NumPy runs what the core does not take.

        Raises:
            BackendError: The native core is not installed.
            ModelError: The core does not take an operation; the message names it.
        """
        native.core()
        unknown = [node for node in self._stepping.program.nodes if not takes([node])]
        if unknown:
            raise ModelError(
                f"{unknown[0].name} is {in_words(unknown[0])}, which the native engine does not run: leave "
                f"{argument('implementation')} and {argument('precision')} out."
            )

    def _run(
        self, state: np.ndarray, ids: np.ndarray, lengths: np.ndarray | None
    ) -> tuple[np.ndarray, np.ndarray]:
        logits = np.empty((len(ids), self.outputs), np.float32)
        self._check_finite(state)
        streams = self._streams(state)
        for begin, end, rows in _parts(ids, lengths, _at_once(ids)):
            found = self._push(streams, ids[:, begin:end], rows)
            logits[rows] = found[:, -1] if self._every_step else found
        return streams.state, logits

    def _score(
        self, state: np.ndarray, ids: np.ndarray, lengths: np.ndarray | None
    ) -> tuple[np.ndarray, np.ndarray]:
        scores = np.zeros((len(ids), ids.shape[1] - 1), np.float32)
        self._check_finite(state)
        streams = self._streams(state)
        for begin, end, rows in _parts(ids, lengths, _at_once(ids) if self._every_step else 1):
            found = self._push(streams, ids[:, begin:end], rows)
            logits = found if self._every_step else found[:, None]
            following = ids[rows, begin + 1 : end + 1]
            likely = sampling.log_softmax(logits[:, : following.shape[1]])
            each = np.take_along_axis(likely, following[..., None], axis=2)[..., 0]
            going = np.arange(begin + 1, begin + 1 + each.shape[1]) < _counts(ids, lengths)[rows, None]
            scores[rows, begin : begin + each.shape[1]] = np.where(going, each, 0)
        return streams.state, scores

    def _draw(
        self,
        state: np.ndarray,
        after: np.ndarray,
        logits: np.ndarray,
        rows: Sequence[CheckedRequest],
        ids: np.ndarray,
        log_probabilities: np.ndarray,
    ) -> list[tuple[int, bool]]:
        drawn = [0] * len(rows)
        streams, going = self._streams(state), list(range(len(rows)))
        while going:
            ended = []
            for place, row in enumerate(going):
                at = drawn[row]
                one = _drawn(rows[row], logits[row], ids[row, :at]) if at < rows[row].count else None
                if one is None:
                    ended.append(place)
                else:
                    ids[row, at], log_probabilities[row, at] = one
                    drawn[row] += 1
            if ended:
                after[[going[place] for place in ended]] = streams.leave(ended).state
                going = [row for place, row in enumerate(going) if place not in ended]
            if going:
                new = np.array([ids[row, drawn[row] - 1] for row in going], np.int32)
                found = self._push(streams, new[:, None])
                logits[going] = found[:, -1] if self._every_step else found
        return [(count, False) for count in drawn]

    def _streams(self, state: np.ndarray) -> Streams:
        streams = Streams(self._stepping, self._engine, len(state), "")
        streams.set_states(range(len(state)), state)
        return streams

    def _push(self, streams: Streams, ids: np.ndarray, rows: np.ndarray | None = None) -> np.ndarray:
        """Push ids (B, k) of all rows into some rows of streams, or into all; return their logits."""
        if rows is not None and len(rows) == streams.count:
            rows = None
        chosen = ids if rows is None else ids[rows]
        x = np.eye(self.vocabulary_size, dtype=np.float32)[chosen] if self._one_hot else chosen
        found = streams.push(np.ascontiguousarray(x), rows)
        assert isinstance(found, np.ndarray)  # noqa: S101 (a next-token model has one output)
        return found


def _drawn(row: CheckedRequest, logits: np.ndarray, drawn: np.ndarray) -> tuple[int, float] | None:
    """Draw the next id of a sequence, and its log probability; None at its end."""
    if row.cancelled is not None and row.cancelled[0]:
        return None
    seen = np.concatenate([row.previous, drawn]) if row.rules.repetition_penalty != 1 else row.previous[:0]
    position = row.position + len(drawn)
    if native.why_unavailable() is None:
        found = native_sampling.sample(logits, row.rules, position, seen)
    else:
        one, log_probability = sampling.sample(logits[None], row.rules, position, [seen])
        found = int(one[0]), float(log_probability[0])
    return None if found[0] in row.stop_ids else found


def _at_once(ids: np.ndarray) -> int:
    return max(1, _POSITIONS_AT_ONCE // max(1, len(ids)))


def _counts(ids: np.ndarray, lengths: np.ndarray | None) -> np.ndarray:
    return np.full(len(ids), ids.shape[1]) if lengths is None else lengths


def _parts(ids: np.ndarray, lengths: np.ndarray | None, most: int) -> list[tuple[int, int, np.ndarray]]:
    """The parts in which rows of ids are read, as begin, end and rows: none reaches beyond the end of a row."""
    counts = _counts(ids, lengths)
    if not len(counts):
        return []
    ends = sorted({*counts.tolist(), *range(most, int(counts.max()), most)})
    return [(begin, end, np.flatnonzero(counts >= end)) for begin, end in zip([0, *ends], ends, strict=False)]


def _without_softmax(program: Program) -> Program:
    """The program without the softmax at its end: the logits before it give the same distribution.

    Raises:
        ModelError: It has another softmax, so its output may be a mixture of probabilities.
    """
    nodes = list(program.nodes)
    (last,) = program.outputs.values()
    while nodes[last].op == "activation" and nodes[last].options["activation"] == "linear":
        last = nodes[last].inputs["x"]
    if nodes[last].op in ("activation", "dense") and nodes[last].options["activation"] in NORMALIZERS:
        options = {**nodes[last].options, "activation": "linear"}
        nodes[last] = dataclasses.replace(nodes[last], options=options)
    for node in nodes:
        if node.op == "softmax" or node.options.get("activation") in NORMALIZERS:
            raise refusal(f"{node.name} is a softmax that is not the end")
    return Program(tuple(nodes), program.outputs)


def id_counts(program: Program) -> tuple[int, int]:
    """The number of ids that a next-token model reads, and of the logits that it gives.

    Raises:
        ModelError: As `ProgramSteps`.
    """
    steps = ProgramSteps(program, "float32")
    return steps.vocabulary_size, steps.outputs
