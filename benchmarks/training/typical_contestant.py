"""A contestant's process in the contest of typical models: it trains one model in one way.

`typical` starts it, and sends requests to its standard input: the number of steps, the rows of a batch, and whether the
steps are checked, for which dropout is switched off.
"""

import argparse
import json
import resource
import sys
from collections.abc import Callable
from typing import Any

from benchmarks.processes import refusal
from benchmarks.training.contestant import EPSILON, LEARNING_RATE, Settings
from benchmarks.training.typical_models import MODELS, Typical, keras_loss, keras_model
from benchmarks.training.typical_torch import torch_steps
from cellerate.observe.bench.contestant import allocator_found

Run = Callable[[list[Any]], tuple[list[float], list[float]]]


def keras_steps(model: Typical, settings: Settings, *, dropout: bool) -> Run:
    """Steps of `fit`, with Keras's own code or accelerated."""
    if settings["implementation"] != "keras":
        import cellerate

        cellerate.select_backend(settings["backend"])
    import keras
    import numpy as np

    from cellerate.observe.bench.training import Clock

    keras.config.set_floatx("float64" if settings["policy"] == "float64" else "float32")
    keras.config.set_dtype_policy(settings["policy"])
    keras.utils.set_random_seed(0)
    built = keras_model(model, dropout=dropout)
    optimizer = keras.optimizers.Adam(LEARNING_RATE, epsilon=EPSILON)
    built.compile(optimizer, keras_loss(model), jit_compile=settings["jit_compile"])
    if settings["implementation"] != "keras":
        cellerate.accelerate(built, settings["implementation"])

    def run(batches: list[Any]) -> tuple[list[float], list[float]]:
        x, y = keras.tree.map_structure(lambda *parts: np.concatenate(parts), *batches)
        rows = len(batches[0][1])
        clock = Clock()
        built.fit(x, y, batch_size=rows, epochs=1, shuffle=False, verbose=0, callbacks=[clock])
        return clock.seconds(), clock.losses()

    return run


def steps_of(settings: Settings, *, dropout: bool) -> Run:
    """Steps of the contestant with these settings."""
    model = MODELS[settings["model"]]
    if settings["implementation"] == "torch.nn.LSTM":
        compiled, float64 = settings["jit_compile"] is True, settings["policy"] == "float64"
        return torch_steps(model, compiled=compiled, float64=float64, dropout=dropout)
    return keras_steps(model, settings, dropout=dropout)


def contestant(settings: Settings) -> None:
    """Read requests and write times and losses, line by line."""
    import numpy as np

    model = MODELS[settings["model"]]
    made: dict[bool, Run] = {}
    try:
        for line in sys.stdin:
            count, rows, checked = json.loads(line)
            random = np.random.default_rng(rows)
            batches = [model.data(rows, random) for _ in range(count)]
            if model.random and checked:
                run = steps_of(settings, dropout=False)
            else:
                run = (
                    made[False] if False in made else made.setdefault(False, steps_of(settings, dropout=True))
                )
            seconds, losses = run(batches)
            peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
            done = {"seconds": seconds, "losses": losses, "peak_bytes": peak, "allocator": allocator_found()}
            print(json.dumps(done), flush=True)
    except Exception as error:
        print(json.dumps(refusal(error)), flush=True)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("settings", type=json.loads)
    contestant(parser.parse_args().settings)
