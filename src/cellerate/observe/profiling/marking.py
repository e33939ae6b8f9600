"""Puts marks around the parts of a model, by which a profiler tells them apart, and removes the marks again."""

from __future__ import annotations

import contextlib
import dataclasses
import importlib
from collections.abc import Callable, Iterator
from typing import Any, Literal

import keras

from cellerate.bridges.profiled import Bridge, mark
from cellerate.keras_graph.graph import functional_graph, inner_layers
from cellerate.layers.accelerate import forget_compiled

Kind = Literal["layer", "loss", "optimizer"]
_Shape = tuple[int, ...]


@dataclasses.dataclass(frozen=True)
class MarkedPart:
    """A part of a model.

    Attributes:
        name: The layer's path, or the purpose of the part.
        kind: The kind of part.
        layer: The layer; None for other parts.
        calls: The shapes of the first input and the first output of each call, if known.
    """

    name: str
    kind: Kind
    layer: Any = None
    calls: list[tuple[_Shape, _Shape]] = dataclasses.field(default_factory=list)


def profiler() -> Bridge:
    """The profiler of the running backend."""
    bridge: Any = importlib.import_module(f"cellerate.bridges.{keras.config.backend()}_profiler")
    found: Bridge = bridge
    return found


@contextlib.contextmanager
def marks(model: keras.Model) -> Iterator[list[MarkedPart]]:
    """Mark the layers, the loss and the optimizer of a compiled model.

    Args:
        model: The model; its functions are compiled anew with the marks, and afterwards again without them.

    Yields:
        The parts; the number of a mark is its index in this list.
    """
    scope = profiler().scope
    parts: list[MarkedPart] = []
    with contextlib.ExitStack() as undo:

        def replace(owner: Any, attribute: str, part: MarkedPart) -> None:
            name, original = mark(len(parts)), getattr(owner, attribute)
            own = attribute in owner.__dict__
            parts.append(part)
            object.__setattr__(owner, attribute, _within(scope, name, original, part))
            undo.callback(_give_back, owner, attribute, original if own else None)

        for path, layer in leaves(model):
            replace(layer, "call", MarkedPart(path, "layer", layer))
        replace(model, "compute_loss", MarkedPart("loss", "loss"))
        apply = "stateless_apply" if keras.config.backend() == "jax" else "apply"
        replace(
            model.optimizer, apply, MarkedPart(f"optimizer ({type(model.optimizer).__name__})", "optimizer")
        )
        forget_compiled(model)
        undo.callback(forget_compiled, model)
        yield parts


def leaves(model: keras.Layer) -> Iterator[tuple[str, keras.Layer]]:
    """The layers that compute, with their paths, also those in nested models and in wrappers.

    A shared layer appears once, at its first path.
    """
    seen: set[int] = set()

    def look(holder: keras.Layer, path: str) -> Iterator[tuple[str, keras.Layer]]:
        for layer in inner_layers(holder):
            if id(layer) in seen or isinstance(layer, keras.layers.InputLayer | keras.metrics.Metric):
                continue
            seen.add(id(layer))
            here = f"{path}{layer.name}"
            holds = functional_graph(layer) is not None or isinstance(layer, keras.Model)
            # The cells of an RNN run once a step, within the layer's own time.
            if not holds:
                yield here, layer
            if holds or isinstance(layer, keras.layers.Wrapper | keras.layers.Bidirectional):
                yield from look(layer, f"{here}/")

    yield from look(model, "")


def _within(
    scope: Callable[[str], Any], name: str, original: Callable[..., Any], part: MarkedPart
) -> Callable[..., Any]:
    def call(*args: Any, **kwargs: Any) -> Any:
        with scope(name):
            made = original(*args, **kwargs)
        taken, given = _shape(args), _shape(made)
        if taken is not None and given is not None:
            part.calls.append((taken, given))
        return made

    return call


def _shape(values: Any) -> tuple[int, ...] | None:
    """The shape of the first array; None if there is none, or a size is not known yet."""
    first = next((value for value in keras.tree.flatten(values) if hasattr(value, "shape")), None)
    if first is None or any(not isinstance(size, int) for size in first.shape):
        return None
    return tuple(first.shape)


def _give_back(owner: Any, attribute: str, original: Any) -> None:
    if original is None:
        object.__delattr__(owner, attribute)
    else:
        object.__setattr__(owner, attribute, original)
