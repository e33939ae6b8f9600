"""Runs Keras's own training step as a CUDA graph, for accelerated models on torch and a GPU.

Only this module replaces a model's training function, and the way its layers seed random numbers while the graph is
recorded.
"""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Iterator
from typing import Any

import keras

from cellerate.layers import fused


def make_train_function(model: keras.Model, force: bool = False) -> None:
    """Stands in for `Model.make_train_function` on torch, and captures the step as a CUDA graph."""
    is_new = model.train_function is None or force
    type(model).make_train_function(model, force)
    if is_new and _may_be_captured(model):
        model.train_function = fused.bridge().capture_step(
            model.train_function, functools.partial(seeding, model)
        )


def captured_step(model: Any) -> str | None:
    """A description of the training step of an accelerated model on torch and a GPU; None elsewhere."""
    made = getattr(vars(model).get("make_train_function"), "func", None)
    if made is not make_train_function or not _may_be_captured(model):
        return None
    refused = getattr(getattr(model, "train_function", None), "refused", None)
    if refused is not None:
        return f"each operation started from Python: {refused}"
    return "a CUDA graph, once three steps of its shape have run"


def _may_be_captured(model: keras.Model) -> bool:
    """True if a model trains with Keras's own step; a graph would run the Python of any other step only once."""
    own = type(model).train_step is not keras.Model.train_step
    return not (own or model.run_eagerly or model.jit_compile)


@contextlib.contextmanager
def seeding(model: keras.Model, draws: Any) -> Iterator[None]:
    """Makes Keras take random generators from `bridges.torch_draws.Draws` while a step is recorded.

    Keras's random functions on torch share one function, which seeds a generator from the state of a `SeedGenerator`
    and advances that state. Nothing is replaced in a version of Keras without this function, and training steps that
    draw random numbers are then not captured.
    """
    from keras.src.backend.torch import random

    original: Any = getattr(random, "torch_seed_generator", None)

    def generator(seed: Any) -> Any:
        # Nothing is drawn while only shapes are computed.
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
        # A cell keeps its dropout masks until its layer has finished. If the capture fails inside the layer, they
        # would stay, and the next step would use masks that no graph ever fills.
        for layer in model._flatten_layers():
            if hasattr(layer, "_maybe_reset_dropout_masks"):
                layer._maybe_reset_dropout_masks(layer.cell)
