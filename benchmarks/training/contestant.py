"""A contestant's process in the training contest: it trains one model with Keras, Cellerate or torch.

A process holds one Keras backend. `race` starts this module for each contestant, and sends the number of steps to run
next to its standard input.
"""

import argparse
import json
import resource
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from benchmarks.processes import refusal
from cellerate.observe.bench.contestant import allocator_found

EMBEDDING = 256
LEARNING_RATE, CLIPNORM, EPSILON = 1e-3, 1.0, 1e-7
# The options of a layer beyond the plain one; "random mask" masks a third of the steps.
VARIANTS: dict[str, dict[str, Any]] = {
    "plain": {},
    "random mask": {},
    "relu": {"activation": "relu"},
    "recurrent dropout": {"recurrent_dropout": 0.2},
    "bidirectional": {},
    "no bias": {"use_bias": False},
}
Settings = dict[str, Any]


def contestant(book: Path, settings: Settings) -> None:
    """The contestant's process: read step counts, write times and losses."""
    text = book.read_text(encoding="utf-8-sig").replace("\r\n", "\n")
    characters = sorted(set(text))
    numbers = {character: number for number, character in enumerate(characters)}
    import numpy as np

    ids = np.array([numbers[character] for character in text], np.int32)
    if settings["allocator"] == "stock" and settings["implementation"].startswith("cellerate"):
        _leave_the_allocator()
    train = _torch_loop if settings["implementation"] == "torch.nn.LSTM" else _keras_fit
    try:
        run, ran = train(len(characters), settings)
        _serve(ids, settings, run, ran)
    except Exception as error:
        print(json.dumps(refusal(error)), flush=True)


def _serve(ids: Any, settings: Settings, run: Any, ran: Any) -> None:
    import numpy as np

    starts = np.random.default_rng(0)
    for line in sys.stdin:
        count, batch = json.loads(line)
        seconds, losses = run([_batch(ids, batch, settings["length"], starts) for _ in range(count)])
        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
        done = {"seconds": seconds, "losses": losses, "peak_bytes": peak, "ran": ran()}
        print(json.dumps(done | {"allocator": allocator_found()}), flush=True)


def _leave_the_allocator() -> None:
    """Keep the default allocator, which users cannot choose, to measure the gain of Cellerate's setting."""
    import importlib

    for name in ("machine.environment", "layers.accelerate"):
        importlib.import_module(f"cellerate.{name}").keep_freed_memory = lambda: False


def initial_weight(name: str, shape: Sequence[int], random: Any) -> Any:
    """A weight drawn like Keras's, the same on every backend.

    Args:
        name: Keras's name: "embeddings", "kernel", "recurrent_kernel" or "bias".
        shape: The shape of the weight; a bias of four gates begins with the forget gate at 1.
        random: NumPy's generator.
    """
    import numpy as np

    if name == "embeddings":
        return random.uniform(-0.05, 0.05, shape)
    if name == "recurrent_kernel":
        return np.linalg.qr(random.standard_normal(shape[::-1]))[0].T
    if name == "kernel":
        limit = np.sqrt(6 / sum(shape))
        return random.uniform(-limit, limit, shape)
    return np.zeros(shape)


def plain_weights(vocabulary: int, units: int) -> list[Any]:
    """The weights of the plain model, in Keras's order."""
    import numpy as np

    random = np.random.default_rng(0)
    shapes = {
        "embeddings": [(vocabulary, EMBEDDING)],
        "kernel": [(EMBEDDING, 4 * units)],
        "recurrent_kernel": [(units, 4 * units)],
        "bias": [(4 * units,)],
    }
    lstm = [initial_weight(name, shape, random) for name, (shape,) in shapes.items()]
    dense = [("kernel", (units, vocabulary)), ("bias", (vocabulary,))]
    return [*lstm, *(initial_weight(name, shape, random) for name, shape in dense)]


def _batch(ids: Any, batch: int, length: int, starts: Any) -> tuple[Any, Any]:
    """Windows at random positions, and the same windows one character later."""
    import numpy as np

    first = starts.integers(0, len(ids) - length - 1, batch)
    windows = ids[first[:, None] + np.arange(length + 1)]
    return windows[:, :-1], windows[:, 1:]


# Runs steps and returns their times and losses; the second function names the kernel of each layer.
Training = tuple[Callable[[list[Any]], tuple[list[float], list[float]]], Callable[[], dict[str, str | None]]]


def _keras_model(vocabulary: int, settings: Settings) -> Any:
    """The model with its variant of the layer, compiled, and accelerated unless it is Keras's own."""
    if settings["implementation"] != "keras":
        import cellerate

        cellerate.select_backend(settings["backend"])
    import keras
    import numpy as np

    keras.utils.set_random_seed(0)
    keras.config.set_dtype_policy(settings["policy"])
    variant = settings.get("variant", "plain")
    layer = keras.layers.LSTM(
        settings["units"], return_sequences=True, unroll=settings["unroll"], **VARIANTS[variant]
    )
    ids = keras.Input((settings["length"],), dtype="int32")
    x = keras.layers.Embedding(vocabulary, EMBEDDING)(ids)
    if variant == "bidirectional":
        x = keras.layers.Bidirectional(layer)(x)
    elif variant == "random mask":
        x = layer(x, mask=keras.ops.not_equal(ids % 3, 0))
    else:
        x = layer(x)
    model = keras.Model(ids, keras.layers.Dense(vocabulary)(x))
    random = np.random.default_rng(0)
    model.set_weights([initial_weight(one.name, one.shape, random) for one in model.weights])
    model.compile(
        keras.optimizers.Adam(LEARNING_RATE, epsilon=EPSILON, clipnorm=CLIPNORM),
        keras.losses.SparseCategoricalCrossentropy(from_logits=True),
        jit_compile=settings["jit_compile"],
    )
    if settings["implementation"] != "keras":
        cellerate.accelerate(model, settings["implementation"])
    return model


def _keras_fit(vocabulary: int, settings: Settings) -> Training:
    model = _keras_model(vocabulary, settings)
    import numpy as np

    from cellerate.observe.bench.training import Clock

    initial, rows = model.get_weights(), 0

    def run(batches: list[Any]) -> tuple[list[float], list[float]]:
        nonlocal rows
        if rows not in (0, len(batches[0][0])):
            # Each batch size starts from the first weights, so that its first losses can be checked.
            model.set_weights(initial)
            for variable in model.optimizer.variables:
                if "learning_rate" not in variable.path:
                    variable.assign(np.zeros(variable.shape, variable.dtype))
        rows = len(batches[0][0])
        x = np.concatenate([inputs for inputs, _ in batches])
        y = np.concatenate([targets for _, targets in batches])
        clock = Clock()
        model.fit(x, y, batch_size=len(batches[0][0]), epochs=1, shuffle=False, verbose=0, callbacks=[clock])
        return clock.seconds(), clock.losses()

    def ran() -> dict[str, str | None]:
        if settings["implementation"] == "keras":
            return {}
        import cellerate

        found = cellerate.explain(model)
        kernels = {layer.path: layer.kernel for layer in found.layers}
        return {**kernels, "training step": found.training_step}

    return run, ran


def _torch_parts(vocabulary: int, units: int) -> tuple[list[Any], list[tuple[Any, Any]]]:
    """The embedding, the LSTM and the dense layer, and the first value of each parameter."""
    import numpy as np
    import torch

    embedding = torch.nn.Embedding(vocabulary, EMBEDDING)
    lstm = torch.nn.LSTM(EMBEDDING, units, batch_first=True)
    dense = torch.nn.Linear(units, vocabulary)
    # Keras has one bias; the other one stays at zero.
    lstm.bias_hh_l0.requires_grad_(False)
    table, kernel, recurrent_kernel, bias, head, head_bias = plain_weights(vocabulary, units)
    given = [
        (embedding.weight, table),
        (lstm.weight_ih_l0, kernel.T),
        (lstm.weight_hh_l0, recurrent_kernel.T),
        (lstm.bias_ih_l0, bias),
        (lstm.bias_hh_l0, np.zeros_like(bias)),
        (dense.weight, head.T),
        (dense.bias, head_bias),
    ]
    return [embedding, lstm, dense], given


def _torch_loop(vocabulary: int, settings: Settings) -> Training:
    import numpy as np
    import torch

    if settings["policy"] == "float64":
        torch.set_default_dtype(torch.float64)
    (embedding, lstm, dense), given = _torch_parts(vocabulary, settings["units"])

    def begin() -> None:
        with torch.no_grad():
            for parameter, array in given:
                parameter.copy_(torch.tensor(np.ascontiguousarray(array)))

    begin()
    parameters = [parameter for parameter, _ in given if parameter.requires_grad]
    optimizer = torch.optim.Adam(parameters, lr=LEARNING_RATE, fused=True)
    loss_of = torch.nn.CrossEntropyLoss()

    def forward(inputs: Any, targets: Any) -> Any:
        logits = dense(lstm(embedding(inputs))[0])
        return loss_of(logits.to(dense.weight.dtype).flatten(0, 1), targets.flatten())

    compiled = torch.compile(forward) if settings["jit_compile"] is True else forward
    taken, rows = 0, 0

    def run(batches: list[Any]) -> tuple[list[float], list[float]]:
        nonlocal taken, rows
        if rows not in (0, len(batches[0][0])):
            begin()
            optimizer.state.clear()
            taken = 0
        rows = len(batches[0][0])
        seconds, losses = [], []
        for inputs, targets in batches:
            start = time.perf_counter()
            with torch.autocast("cpu", torch.bfloat16, enabled=settings["policy"] == "mixed_bfloat16"):
                loss = compiled(torch.from_numpy(inputs), torch.from_numpy(targets).long())
            optimizer.zero_grad()
            loss.backward()
            # Clip each gradient separately, as Keras does.
            gradients = [parameter.grad for parameter in parameters]
            norms = torch._foreach_norm(gradients)
            torch._foreach_mul_(gradients, [(CLIPNORM / norm).clamp(max=1.0) for norm in norms])
            taken += 1
            # Keras adds epsilon before the bias correction of Adam.
            optimizer.param_groups[0]["eps"] = EPSILON / (1 - 0.999**taken) ** 0.5
            optimizer.step()
            losses.append(loss.item())
            seconds.append(time.perf_counter() - start)
        return seconds, losses

    return run, dict


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("settings", type=json.loads)
    parser.add_argument("book", type=Path)
    arguments = parser.parse_args()
    contestant(arguments.book, arguments.settings)
