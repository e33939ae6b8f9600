"""Next-token chains with random weights."""

from typing import Any

import numpy as np

from cellerate.kernels.decoder.cpu import StepModel

V = 23
Chain = list[dict[str, Any]]


class Weights:
    def __init__(self, seed: int) -> None:
        self.rng = np.random.default_rng(seed)

    def __call__(self, *shape: int, scale: float = 1.0) -> np.ndarray:
        return (self.rng.standard_normal(shape) * scale).astype(np.float32)

    def lstm(self, inputs: int, units: int, activation: str = "tanh", bias: bool = True) -> dict[str, Any]:
        return {
            "op": "lstm",
            "kernel": self(inputs, 4 * units, scale=inputs**-0.5),
            "recurrent_kernel": self(units, 4 * units, scale=0.7 * units**-0.5),
            "bias": self(4 * units, scale=0.3) if bias else None,
            "activation": activation,
            "recurrent_activation": "sigmoid",
        }

    def dense(
        self, inputs: int, outputs: int, activation: str = "linear", bias: bool = True
    ) -> dict[str, Any]:
        return {
            "op": "dense",
            "kernel": self(inputs, outputs, scale=inputs**-0.5),
            "bias": self(outputs, scale=0.3) if bias else None,
            "activation": activation,
        }


def plain_chain(units: int = 40) -> Chain:
    make = Weights(1)
    return [{"op": "embedding", "embeddings": make(V, 17)}, make.lstm(17, units), make.dense(units, V)]


def long_chain() -> Chain:
    make = Weights(2)
    return [
        {"op": "embedding", "embeddings": make(V, 10)},
        {"op": "affine", "scale": make(10), "offset": make(10)},
        make.lstm(10, 33),
        {"op": "layer_norm", "gamma": make(33), "beta": make(33), "epsilon": 1e-3},
        make.lstm(33, 50, activation="relu", bias=False),
        {"op": "layer_norm", "gamma": None, "beta": None, "epsilon": 1e-6},
        make.dense(50, 31, activation="silu"),
        make.dense(31, V, bias=False),
    ]


CHAINS = {"plain": plain_chain, "long": long_chain}


def log_softmax(logits: np.ndarray) -> np.ndarray:
    shifted = logits - logits.max(-1, keepdims=True)
    return shifted - np.log(np.exp(shifted).sum(-1, keepdims=True))


def ids_of(rows: int, steps: int) -> np.ndarray:
    return np.random.default_rng(3).integers(0, V, (rows, steps))


def start_of(model: StepModel) -> tuple[np.ndarray, np.ndarray]:
    state, logits = model.read(model.initial_state(1), np.array([[1, 2, 3]]))
    return state, logits[0]
