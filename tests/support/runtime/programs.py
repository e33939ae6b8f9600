"""Programs of packed models for tests: a few that together hold every operation, and random ones."""

from typing import Any

import numpy as np
from hypothesis import strategies as st

from cellerate.program import Program
from cellerate.program.elementwise import FUNCTIONS
from support.graphs import Graph, draw

V, E, H, F = 11, 6, 21, 5
Given = dict[str, np.ndarray]


def classifier() -> Program:
    """ids → a masked bidirectional LSTM → another one → its states, means, and a softmax."""
    graph = Graph()
    ids = graph.input("ids", -1, dtype="int32")
    rows = graph.add("embedding", "table", {"ids": ids}, {"embeddings": draw(V, E)})
    mask = graph.add("ids_mask", "table", {"ids": ids})
    forward = graph.lstm(rows, "forward", E, H, mask=mask)
    backward = graph.lstm(rows, "backward", E, H, mask=mask, go_backwards=True, masked_output="zero")
    backward = graph.add("flip", "both", {"x": backward}, axis=1)
    both = graph.add("concatenate", "both", {"0": forward, "1": backward}, axis=-1)
    top = graph.lstm(both, "top", 2 * H, H + 3, mask=mask, masked_output="previous_state")
    h = graph.add("lstm_state", "top", {"lstm": top}, state="h")
    c = graph.add("lstm_state", "top", {"lstm": top}, state="c")
    mean = graph.add("mean_over_time", "mean", {"x": top, "mask": mask})
    most = graph.add("max_over_time", "most", {"x": top})
    joined = graph.add("concatenate", "joined", {"0": mean, "1": most}, axis=1)
    return graph.program(
        probabilities=graph.dense(joined, "head", 2 * (H + 3), 4, "softmax"),
        logs=graph.dense(top, "logs", H + 3, 70, "log_softmax"),
        h=h,
        c=c,
        both=both,
    )


def forecaster(units: int = H) -> Program:
    """Two stacked LSTMs and a dense layer."""
    graph = Graph()
    first = graph.lstm(graph.input("x", -1, F), "first", F, units)
    second = graph.lstm(first, "second", units, units, return_sequences=False)
    return graph.program(y=graph.dense(second, "head", units, 3))


def sequence_to_sequence() -> Program:
    """An encoder whose states begin a decoder, masks of features, and every way to move steps."""
    graph = Graph()
    x, y = graph.input("x", -1, F), graph.input("y", -1, F)
    mask = graph.add("features_mask", "mask", {"x": x}, mask_value=0.0)
    masked = graph.add("masked", "masked", {"x": x, "mask": mask})
    flipped = graph.add("flip_mask", "flipped", {"mask": mask})
    either = graph.add("any_mask", "either", {"0": mask, "1": flipped})
    back = graph.add("flip", "back", {"x": x}, axis=1)
    chosen = graph.add("where", "chosen", {"x": masked, "other": back, "mask": either})
    encoder = graph.lstm(chosen, "encoder", F, H, mask=flipped, go_backwards=True, return_sequences=False)
    h = graph.add("lstm_state", "encoder", {"lstm": encoder}, state="h")
    again = graph.add("lstm_state", "again", {"lstm": encoder}, state="h")
    c = graph.add("lstm_state", "encoder", {"lstm": encoder}, state="c")
    decoder = graph.lstm(y, "decoder", F, H, h0=h, c0=c, activation="softsign")
    other = graph.lstm(
        y, "other", F, H, h0=again, c0=c, recurrent_activation="hard_sigmoid", activation="relu"
    )
    norm = graph.add(
        "layer_norm", "norm", {"x": decoder}, {"gamma": draw(H), "beta": draw(H, seed=1)}, epsilon=1e-3
    )
    plain = graph.add("layer_norm", "plain", {"x": other}, epsilon=1e-3)
    sums = [
        graph.add(op, op, {"0": norm, "1": plain})
        for op in ("add", "subtract", "multiply", "average", "maximum", "minimum")
    ]
    joined = graph.add("concatenate", "joined", {str(n): at for n, at in enumerate([*sums, norm])}, axis=2)
    last = graph.add("crop", "last", {"x": joined}, begin=-1, end=None)
    flat = graph.add("reshape", "flat", {"x": last}, shape=(7 * H,))
    repeated = graph.add("repeat_vector", "repeated", {"x": flat}, n=4)
    table = {"embeddings": draw(70, 7 * H)}
    capped = graph.add("unembedding", "capped", {"x": repeated}, table, soft_cap=3.0)
    turned = graph.add("flip", "turned", {"x": joined}, axis=1)
    scaled = graph.affine(turned, "scaled", 7 * H)
    return graph.program(
        capped=capped,
        scaled=graph.add("activation", "silu", {"x": scaled}, activation="silu"),
        given=y,
        encoded=encoder,
        square=graph.add("reshape", "square", {"x": flat}, shape=(H, 7)),
    )


def moves(*, masks: bool = True) -> Program:
    """The operations that the other programs lack, on numbers, ids and masks; the length is fixed."""
    graph = Graph()
    x, ids = graph.input("x", 6, F), graph.input("ids", 6, dtype="int32")
    crop = graph.add("crop", "crop", {"x": x}, begin=1, end=-1)
    take = graph.add("take", "take", {"x": crop}, indices=(-1, 0, 0), axis=1)
    first = graph.add("take", "first", {"x": ids}, indices=(1, 5), axis=-1)
    rows = graph.add("embedding", "rows", {"ids": first}, {"embeddings": draw(V, E)})
    turned = graph.add("permute", "turned", {"x": take}, axes=(2, 1))
    sums = graph.add("cumsum", "sums", {"x": turned}, axis=-1)
    flat = graph.add("reshape", "flat", {"x": sums}, shape=(-1,))
    outputs = {
        "wide": graph.add(
            "add", "wide", {"0": flat, "1": graph.add("reshape", "x2", {"x": x}, shape=(2, 15))}
        ),
        "rows": rows,
        "twice": graph.add("concatenate", "twice", {"0": ids, "1": first}, axis=1),
        "most": graph.add("max_over_time", "most", {"x": crop}),
    }
    if masks:
        mask = graph.add("ids_mask", "mask", {"ids": ids})
        outputs["mask"] = graph.add("reshape", "mask", {"x": mask}, shape=(3, 2))
    return graph.program(**outputs)


def inputs_of(program: Program, batch: int, steps: int, seed: int = 0) -> Given:
    found = {}
    for name, number in program.inputs.items():
        shape: Any = program.nodes[number].options["shape"]
        rng = np.random.default_rng([seed, batch, steps])
        sizes = (batch, *(steps if size == -1 else size for size in shape[1:]))
        if program.nodes[number].options["dtype"] == "int32":
            found[name] = rng.integers(0, V, sizes).astype(np.int32)
            found[name][:, : steps // 3] *= rng.random((batch, steps // 3)) < 0.5
        else:
            found[name] = rng.standard_normal(sizes).astype(np.float32)
            found[name][rng.random(sizes[:-1]) < 0.2] = 0
    return found


def windows(graph: Graph, op: str, x: int, size: int, padding: str, **options: Any) -> int:
    """Add a node that reads windows, named after its operation and number."""
    chosen = {"strides": 1, "dilation": 1, "axis": 1} | options
    return graph.add(op, f"{op} {len(graph.nodes)}", {"x": x}, size=size, padding=padding, **chosen)


def convolutional(*, strided: bool = True) -> Program:
    """Convolutions and pooling over time, within each step of another input, and over the images of videos."""
    graph = Graph()
    x = graph.input("x", -1, F)
    causal = windows(graph, "windows", x, 3, "causal", dilation=2, features=F)
    first = graph.dense(causal, "first", 3 * F, 7, "relu")
    pooled = windows(graph, "max_pool", first, 3, "same", strides=2)
    same = windows(graph, "windows", pooled, 4, "same", strides=2 if strided else 1, features=7)
    second = graph.dense(same, "second", 28, 20, "tanh")
    mean = windows(graph, "average_pool", second, 2, "same", strides=3)
    top = graph.lstm(mean, "top", 20, H)
    frames = graph.input("frames", 3, 8, 2)
    inside = windows(graph, "windows", frames, 3, "valid", strides=2, axis=2, features=2)
    each = graph.dense(inside, "each", 6, 18, "softmax")
    most = windows(graph, "max_pool", each, 2, "valid", axis=2)
    less = windows(graph, "average_pool", each, 3, "same", axis=2)
    flat = graph.add("flatten_steps", "flat", {"x": most})
    of_frames = graph.lstm(flat, "of frames", 36, 5)
    videos = graph.input("videos", -1, 6, 5, 2)
    columns = windows(graph, "windows", videos, 3, "same", axis=3, features=2)
    swapped = graph.add("permute", "swapped", {"x": columns}, axes=(1, 3, 2, 4))
    of_images = windows(graph, "max_pool", swapped, 2, "valid", strides=2, axis=3)
    return graph.program(
        pooled=pooled,
        top=top,
        gathered=same,
        most=most,
        of_frames=of_frames,
        sums=graph.add("sum", "sums", {"x": less}, axis=2, keepdims=False),
        largest=graph.add("max", "largest", {"x": less}, axis=3, keepdims=True),
        normal=graph.add("softmax", "normal", {"x": each}, axis=2),
        joined=graph.add("concatenate", "joined", {"0": x, "1": x}, axis=1),
        turned=graph.add("permute", "turned", {"x": each}, axes=(2, 1, 3)),
        images=windows(graph, "average_pool", of_images, 2, "same", axis=3),
        columns=graph.add("mean", "columns", {"x": of_images}, axis=3, keepdims=False),
    )


def attentive(*, masks: bool = True, additive: bool = True) -> Program:
    """Every operation by which the steps of a sequence attend to all steps of another."""
    graph = Graph()
    x, y = graph.input("x", -1, F), graph.input("y", -1, F)
    h, s = graph.lstm(x, "h", F, 24), graph.lstm(y, "s", F, 24)
    counts: dict[str, int] = {}
    if masks:
        counts = {
            "mask": graph.add("features_mask", "counts", {"x": y}, mask_value=0.0),
            "mask_of_queries": graph.add("features_mask", "asks", {"x": x}, mask_value=0.0),
        }
    three = {"query": h, "key": s, "value": s}
    plain = {"heads": 1, "scale": 1.0, "causal": False, "zeros": False}
    scores = graph.add("softmax", "weights", {"x": graph.dense(h, "scores", 24, 1)}, axis=1)
    context = graph.add("multiply", "context", {"0": h, "1": scores})
    luong = graph.add("dot", "luong", {"0": h, "1": s}, axes=(2, 2))
    powers = graph.add("activation", "powers", {"x": luong}, activation="exponential")
    total = graph.add("sum", "total", {"x": powers}, axis=2, keepdims=True)
    shares = graph.add("divide", "shares", {"0": powers, "1": total})
    last = graph.add(
        "reshape", "flat", {"x": graph.add("crop", "c", {"x": h}, begin=-1, end=None)}, shape=(24,)
    )
    less = graph.add("subtract", "less", {"0": last, "1": h})
    outputs = {
        "context": graph.add("sum", "summed", {"x": context}, axis=1, keepdims=False),
        "mixed": graph.add("dot", "mixed", {"0": shares, "1": s}, axes=(2, 1)),
        "turned": graph.add("dot", "turned", {"0": h, "1": h}, axes=(1, 1)),
        "asked": graph.add("dot", "asked", {"0": s, "1": last}, axes=(2, 1)),
        "asking": graph.add("dot", "asking", {"0": last, "1": s}, axes=(1, 2)),
        "alone": graph.add("dot", "alone", {"0": last, "1": last}, axes=(1, 1)),
        "heads": graph.add("attention", "heads", three | counts, **(plain | {"heads": 3, "scale": 0.35})),
        "causal": graph.add("attention", "causal", three, **(plain | {"causal": True})),
        "hidden": graph.add(
            "attention", "hidden", three | counts, **(plain | {"causal": True, "zeros": masks, "heads": 2})
        ),
        "columns": graph.add("permute", "columns", {"x": luong}, axes=(2, 1)),
        "mean": graph.add("mean", "of steps", {"x": context}, axis=1, keepdims=True),
        "least": graph.add("min", "least", {"x": h}, axis=2, keepdims=False),
        "most": graph.add("max", "most", {"x": less}, axis=1, keepdims=False),
    }  # fmt: skip
    if additive:
        outputs["additive"] = graph.add(
            "attention", "additive", three | counts, {"additive": draw(24)}, **plain
        )
    return graph.program(**outputs)


def elementwise() -> Program:
    """Every elementwise function, comparison and choice, beside operations that move steps."""
    graph = Graph()
    h = graph.lstm(graph.input("x", -1, F), "h", F, 21)
    positive = graph.affine(graph.add("multiply", "squares", {"0": h, "1": h}), "positive", 21, 3.0, 0.5)
    outputs = {
        name: graph.add(
            "function", name, {"x": positive}, function=name, number=1.5 if name == "power" else 0.7
        )
        for name in FUNCTIONS
    }
    first = graph.add("take", "first", {"x": h}, indices=(0,), axis=2)
    last = graph.add("take", "last", {"x": h}, indices=(-2, -1), axis=-1)
    more = graph.add("compare", "more", {"0": h, "1": first}, relation="greater")
    chosen = graph.add("choose", "chosen", {"0": more, "1": h, "2": positive})
    step = graph.add("crop", "step", {"x": h}, begin=-1, end=None)
    joined = graph.add("concatenate", "joined", {str(n): at for n, at in enumerate(outputs.values())}, axis=2)
    return graph.program(
        joined=joined,
        last=last,
        chosen=chosen,
        other=graph.add("choose", "other", {"0": first, "1": step, "2": h}),
        padded=graph.add("pad", "padded", {"x": chosen}, before=2, after=1),
        top=graph.lstm(graph.add("pad", "behind", {"x": last}, before=0, after=2), "top", 2, 5),
    )


PROGRAMS = {
    "classifier": classifier,
    "forecaster": forecaster,
    "sequence to sequence": sequence_to_sequence,
    "convolutional": convolutional,
    "attentive": attentive,
    "elementwise": elementwise,
}


class DrawnProgram:
    """A program of random operations, each applied to valid inputs."""

    def __init__(self, data: st.DataObject) -> None:
        self.data, self.graph = data, Graph()
        self.steps = data.draw(st.integers(1, 7), "steps")
        self.sequences: list[tuple[int, int]] = [(self.graph.input("x", -1, 3), 3)]
        self.flat: list[tuple[int, int]] = [(self.graph.input("y", 4), 4)]
        ids = self.graph.input("ids", -1, dtype="int32")
        self.masks = [self.graph.add("ids_mask", "mask", {"ids": ids})]
        rows = self.graph.add("embedding", "rows", {"ids": ids}, {"embeddings": draw(V, 5)})
        self.sequences.append((rows, 5))
        for number in range(data.draw(st.integers(1, 9), "count")):
            self.add(f"n{number}")

    def pick(self, values: list[Any]) -> Any:
        return self.data.draw(st.sampled_from(values))

    def add(self, name: str) -> None:
        kinds = ["lstm", "lstm", "dense", "row", "merge", "join", "move", "over", "mask", "where", "repeat"]
        kind = self.pick(kinds)
        graph = self.graph
        many = self.pick([True, False])
        (x, width), values = self.pick(self.sequences), self.sequences
        if kind in ("dense", "row", "merge", "join") and not many:
            (x, width), values = self.pick(self.flat), self.flat
        if kind == "lstm":
            units = self.pick([1, 3, 16, 19])
            mask = self.pick([None, *self.masks])
            states = [value for value, size in self.flat if size == units]
            h0 = self.pick([None, *states])
            lstm = graph.lstm(
                x,
                name,
                width,
                units,
                mask=mask,
                h0=h0,
                c0=None if h0 is None else self.pick(states),
                return_sequences=many,
                go_backwards=self.pick([True, False]),
                masked_output=self.pick(["previous_output", "previous_state", "zero"]),
                activation=self.pick(["tanh", "tanh", "relu"]),
            )
            (self.sequences if many else self.flat).append((lstm, units))
            state = graph.add("lstm_state", name, {"lstm": lstm}, state=self.pick(["h", "c"]))
            self.flat.append((state, units))
        elif kind == "dense":
            activation = self.pick(["linear", "tanh", "softmax", "log_softmax"])
            values.append((graph.dense(x, name, width, 7, activation), 7))
        elif kind == "row":
            values.append((graph.add("layer_norm", name, {"x": x}, epsilon=1e-2), width))
        elif kind == "merge":
            same = [value for value, size in values if size == width]
            op = self.pick(["add", "subtract", "multiply", "average", "maximum", "minimum"])
            values.append((graph.add(op, name, {"0": x, "1": self.pick(same)}), width))
        elif kind == "join":
            other, more = self.pick(values)
            values.append((graph.add("concatenate", name, {"0": x, "1": other}, axis=-1), width + more))
        elif kind == "move":
            self.sequences.append((graph.add("flip", name, {"x": x}, axis=1), width))
        elif kind == "over":
            mean = {"x": x} | self.pick([{}, {"mask": self.masks[0]}])
            over = (
                graph.add("mean_over_time", name, mean)
                if many
                else graph.add("max_over_time", name, {"x": x})
            )
            self.flat.append((over, width))
        elif kind == "mask":
            mask = self.pick(self.masks)
            joined = graph.add("any_mask", name, {"0": mask, "1": self.pick(self.masks)})
            self.masks.append(self.pick([graph.add("flip_mask", name, {"mask": mask}), joined]))
        elif kind == "where":
            x, width = self.pick(self.sequences)
            other = self.pick([value for value, size in self.sequences if size == width])
            chosen = graph.add("where", name, {"x": x, "other": other, "mask": self.pick(self.masks)})
            self.sequences.append((chosen, width))
        else:
            flat, size = self.pick(self.flat)
            self.sequences.append((graph.add("repeat_vector", name, {"x": flat}, n=self.steps), size))

    def program(self) -> Program:
        values = [value for value, _ in (*self.sequences, *self.flat)]
        wanted = self.data.draw(st.sets(st.sampled_from(values), min_size=1, max_size=4), "outputs")
        return self.graph.program(**{f"o{number}": number for number in sorted(wanted)})
