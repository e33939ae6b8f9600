"""A typical model as its users write it in torch: torch.nn.LSTM in a loop, eager or compiled."""

import time
from collections.abc import Callable
from typing import Any

from benchmarks.training.contestant import EPSILON, LEARNING_RATE
from benchmarks.training.typical_models import Lines, Typical, weight_of

# The default of Keras's LayerNormalization.
_NORM_EPSILON = 1e-3


def torch_steps(
    model: Typical, *, compiled: bool, float64: bool = False, dropout: bool = True
) -> Callable[[list[Any]], tuple[list[float], list[float]]]:
    """A function that runs steps on batches and returns their times and losses."""
    import torch

    torch.set_default_dtype(torch.float64 if float64 else torch.float32)
    stack: Any = _Lines(model) if isinstance(model, Lines) else _Stack(model, dropout=dropout)
    module = stack.module
    parameters = [one for one in module.parameters() if one.requires_grad]
    optimizer = torch.optim.Adam(parameters, lr=LEARNING_RATE, fused=True)
    criterion: Any = {
        "next id": torch.nn.CrossEntropyLoss(),
        "mean_squared_error": torch.nn.MSELoss(),
        "binary_crossentropy": torch.nn.BCELoss(),
    }[model.loss]

    def loss_of(x: Any, y: Any) -> Any:
        found = stack.forward(x)
        return criterion(found.flatten(0, 1), y.flatten()) if model.loss == "next id" else criterion(found, y)

    forward = torch.compile(loss_of) if compiled else loss_of
    taken = 0

    def run(batches: list[Any]) -> tuple[list[float], list[float]]:
        nonlocal taken
        seconds, losses = [], []
        for x, y in batches:
            start = time.perf_counter()
            inputs = stack.inputs(x)
            targets = torch.from_numpy(y).to(
                torch.int64 if model.loss == "next id" else torch.get_default_dtype()
            )
            loss = forward(inputs, targets)
            optimizer.zero_grad()
            loss.backward()
            taken += 1
            # Keras adds epsilon before the bias correction of Adam.
            optimizer.param_groups[0]["eps"] = EPSILON / (1 - 0.999**taken) ** 0.5
            optimizer.step()
            losses.append(loss.item())
            seconds.append(time.perf_counter() - start)
        return seconds, losses

    return run


class _Lines:
    """The sequence autoencoder with Keras's initial weights, drawn in the same order."""

    def __init__(self, model: Lines) -> None:
        import numpy as np
        import torch

        random = np.random.default_rng(0)
        width, units, latent, words = model.embedding, model.units, model.latent, model.vocabulary
        self.module = torch.nn.ModuleDict(
            {
                "source": embedding(random, words, width),
                "encoder": lstm(random, width, units, two=True),
                "vector": dense(random, 2 * units, latent),
                "hint": dense(random, latent, width),
                "target": embedding(random, words, width),
                "h": dense(random, latent, units),
                "c": dense(random, latent, units),
                "decoder": lstm(random, width, units, two=False),
                "head": dense(random, units, words),
            }
        )

    def inputs(self, x: Any) -> Any:
        """A batch in the form for `forward`."""
        import torch

        return torch.from_numpy(x["source"].copy()), torch.from_numpy(x["target_in"].copy())

    def forward(self, x: Any) -> Any:
        """The logits at each step."""
        import torch

        of = self.module
        source, target = x
        _, (last, _) = of["encoder"](of["source"](source))
        vector = of["vector"](torch.cat(list(last), -1))
        read = of["target"](target) + of["hint"](vector)[:, None]
        states = torch.tanh(of["h"](vector))[None], of["c"](vector)[None]
        sequences, _ = of["decoder"](read, states)
        return of["head"](sequences)


def embedding(random: Any, rows: int, columns: int) -> Any:
    """A table of vectors."""
    import torch

    layer = torch.nn.Embedding(rows, columns)
    _copy(layer.weight, "embeddings", (rows, columns), random)
    return layer


def dense(random: Any, width: int, units: int) -> Any:
    """A dense layer without an activation."""
    import torch

    layer = torch.nn.Linear(width, units)
    _copy(layer.weight, "kernel", (width, units), random)
    _copy(layer.bias, "bias", (units,), random)
    return layer


def lstm(random: Any, width: int, units: int, *, two: bool) -> Any:
    """An LSTM, in two directions if asked for."""
    import torch

    layer = torch.nn.LSTM(width, units, batch_first=True, bidirectional=two)
    for suffix in ("", "_reverse")[: 1 + two]:
        _copy(getattr(layer, f"weight_ih_l0{suffix}"), "kernel", (width, 4 * units), random)
        _copy(getattr(layer, f"weight_hh_l0{suffix}"), "recurrent_kernel", (units, 4 * units), random)
        _copy(getattr(layer, f"bias_ih_l0{suffix}"), "bias", (4 * units,), random)
        # Keras has one bias; the other one stays at zero.
        second = getattr(layer, f"bias_hh_l0{suffix}")
        second.requires_grad_(False)
        with torch.no_grad():
            second.zero_()
    return layer


def _copy(parameter: Any, name: str, shape: tuple[int, ...], random: Any) -> None:
    import numpy as np
    import torch

    found = weight_of(name, shape, random)
    found = found.T if name in ("kernel", "recurrent_kernel") else found
    with torch.no_grad():
        parameter.copy_(torch.tensor(np.ascontiguousarray(found)))


class _Stack:
    """The layers of a model in torch, with the initial weights of the Keras layers."""

    def __init__(self, model: Typical, *, dropout: bool) -> None:
        import numpy as np
        import torch

        self._random = np.random.default_rng(0)
        self._rows: list[tuple[str, Any, dict[str, Any]]] = []
        width = self._features = model.features
        for name, *options in model.layers:
            if name == "embedding":
                (columns,) = options
                layer: Any = embedding(self._random, model.vocabulary, columns)
                width = columns
            elif name == "lstm":
                units, how_lstm = options
                two = bool(how_lstm.get("bidirectional"))
                layer = lstm(self._random, width, units, two=two)
                width = units * (1 + two)
            elif name == "norm":
                layer = torch.nn.LayerNorm(width, eps=_NORM_EPSILON)
            elif name == "dropout":
                layer = torch.nn.Dropout(options[0] if dropout else 0.0)
            else:
                layer = dense(self._random, width, options[0])
                width = options[0]
            how = options[1] if name == "lstm" else {"activation": options[1]} if name == "dense" else {}
            self._rows.append((name, layer, how))
        self.module = torch.nn.ModuleList([layer for _, layer, _ in self._rows])

    def inputs(self, x: Any) -> Any:
        """A batch in the form for the layers."""
        import torch

        return torch.from_numpy(x).to(torch.get_default_dtype() if self._features else torch.int32)

    def forward(self, x: Any) -> Any:
        """The output of all layers."""
        import torch

        for name, layer, how in self._rows:
            if name != "lstm":
                x = layer(x)
                x = torch.sigmoid(x) if how.get("activation") == "sigmoid" else x
                continue
            sequences, (last, _) = layer(x)
            x = sequences if how["sequences"] else torch.cat(list(last), -1)
        return x
