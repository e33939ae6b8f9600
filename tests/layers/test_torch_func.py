"""Accelerated models in torch's own tools: transforms and exports, which run Keras's code, and checkpointing."""

from collections.abc import Callable
from typing import Any

import keras
import numpy as np
import pytest
from keras import layers

from cellerate.errors import ModelError
from cellerate.layers.accelerate import accelerate

torch = pytest.importorskip("torch")
checkpoint = pytest.importorskip("torch.utils.checkpoint").checkpoint
pytestmark = [
    pytest.mark.keras,
    pytest.mark.skipif(keras.backend.backend() != "torch", reason="torch's own"),
]


def model(implementation: str | None = None) -> keras.Model:
    keras.utils.set_random_seed(1)
    made = keras.Sequential([keras.Input((None, 3)), layers.LSTM(4), layers.Dense(2)])
    return made if implementation is None else accelerate(made, implementation)


def inputs() -> Any:
    return torch.tensor(np.random.default_rng(0).normal(size=(4, 5, 3)).astype("float32"))


TRANSFORMS: dict[str, Callable[[Any, Any], Any]] = {
    "grad": lambda m, x: torch.func.grad(lambda a: m(a).sum())(x),
    "vjp": lambda m, x: torch.func.vjp(m, x)[1](torch.ones(4, 2))[0],
    "jacrev": lambda m, x: torch.func.jacrev(m)(x),
    "per-example": lambda m, x: torch.func.vmap(torch.func.grad(lambda a: m(a[None]).sum()))(x),
}


@pytest.mark.parametrize("name", TRANSFORMS)
def test_transform_of_an_accelerated_model_equals_the_stock_model(name: str) -> None:
    right = TRANSFORMS[name](model(), inputs())
    torch.testing.assert_close(TRANSFORMS[name](model("auto"), inputs()), right)


def test_named_implementation_in_a_transform_raises_a_clear_error() -> None:
    with pytest.raises(ModelError, match=r"a transform of torch\.func calls it"):
        TRANSFORMS["grad"](model("cellerate-cpu"), inputs())


def test_exported_program_runs_without_cellerate() -> None:
    x = inputs()
    exported = torch.export.export(model("auto"), (x,))
    assert "cellerate" not in str(exported.graph)
    torch.testing.assert_close(exported.module()(x), model()(x))


# Deprecated, and it warns wherever Keras looks at a shape.
@pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::torch.jit.TracerWarning")
def test_traced_module_runs_without_cellerate() -> None:
    x = inputs()
    with torch.no_grad():
        traced = torch.jit.trace(model("auto"), x, check_trace=False)
    assert "cellerate" not in str(traced.inlined_graph)
    torch.testing.assert_close(traced(x), model()(x))


@pytest.mark.parametrize("use_reentrant", [True, False])
def test_activation_checkpointing_gives_the_gradients_of_the_stock_model(use_reentrant: bool) -> None:
    found = []
    for implementation in (None, "cellerate-cpu"):
        x = inputs().requires_grad_()
        layer = model(implementation)
        checkpoint(layer, x, use_reentrant=use_reentrant).sum().backward()
        found.append([x.grad, *(parameter.grad for parameter in layer.parameters())])
    for ours, right in zip(*found, strict=True):
        torch.testing.assert_close(ours, right)
