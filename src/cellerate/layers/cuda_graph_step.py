"""The training step of an accelerated model on torch and a GPU: Keras's own, as a CUDA graph.

A module of its own because it is the only place that replaces what a model trains with, and how its layers seed their
random numbers while that is recorded.
"""

import contextlib
import functools
from collections.abc import Iterator
from typing import Any

import keras

from cellerate.layers import fused


def make_train_function(model: keras.Model, force: bool = False) -> None:
    """`Model.make_train_function` of Keras on torch, whose step then is captured as a CUDA graph."""
    made = model.train_function is None or force
    type(model).make_train_function(model, force)
    if made and _may_be_captured(model):
        model.train_function = fused.bridge().capture_step(
            model.train_function, functools.partial(seeding, model)
        )


def captured_step(model: Any) -> str | None:
    """What becomes of the training step of an accelerated model on torch and a GPU, in words; None elsewhere."""
    if "make_train_function" not in vars(model) or not _may_be_captured(model):
        return None
    refused = getattr(getattr(model, "train_function", None), "refused", None)
    if refused is not None:
        return f"each operation started from Python: {refused}"
    return "a CUDA graph, once three steps of its shape have run"


def _may_be_captured(model: keras.Model) -> bool:
    """Whether a step is Keras's own: another may do in Python what a graph would do once and never again."""
    own = type(model).train_step is not keras.Model.train_step
    return not (own or model.run_eagerly or model.jit_compile)


@contextlib.contextmanager
def seeding(model: keras.Model, draws: Any) -> Iterator[None]:
    """Has Keras take the generators of a `SeedGenerator` from `bridges.torch_draws.Draws` while a step is recorded.

    Keras's random functions on torch share one function that seeds a generator from the state of a `SeedGenerator`,
    which it counts on. A version of Keras that has another is left as it is: its steps that draw are not captured.
    """
    from keras.src.backend.torch import random

    original: Any = getattr(random, "torch_seed_generator", None)

    def generator(seed: Any) -> Any:
        # Where only shapes are computed nothing is drawn.
        if random.get_device() == "meta" or not isinstance(seed, keras.random.SeedGenerator):
            return original(seed)
        seed.next()
        return draws.generator(seed.state.value)

    if original is not None:
        random.torch_seed_generator = generator
    try:
        yield
    finally:
        if original is not None:
            random.torch_seed_generator = original
        # A cell keeps its masks until its layer is done, which it never is where the capture fails amid it: the next
        # step must not take what no graph will fill.
        for layer in model._flatten_layers():
            if hasattr(layer, "_maybe_reset_dropout_masks"):
                layer._maybe_reset_dropout_masks(layer.cell)
