"""Random models for whole steps of training: a seed draws the layers, the losses, the optimizer and the data."""

import dataclasses
from collections.abc import Callable
from typing import Any

import keras
import numpy as np
from keras import layers, losses

FEATURES, WORDS = 3, 11
_UNITS = (1, 3, 8, 16, 17, 20, 48)
_ACTIVATIONS = ("relu", "tanh", "sigmoid", "elu", "gelu", "silu", "softmax", "softplus", "selu", None)


@dataclasses.dataclass(frozen=True)
class Drawn:
    """A tensor of the model: (B, T, F) if it has steps, else (B, F).

    Attributes:
        tensor: The tensor.
        masked: Whether it may carry a mask.
    """

    tensor: Any
    masked: bool = False

    @property
    def has_steps(self) -> bool:
        return len(self.tensor.shape) == 3

    @property
    def steps(self) -> int | None:
        """T; None if any number fits, or if the tensor has no steps."""
        found: int | None = self.tensor.shape[1] if self.has_steps else None
        return found

    @property
    def features(self) -> int:
        return int(self.tensor.shape[-1])


@dataclasses.dataclass(frozen=True)
class Head:
    """An output: the loss that `compile` takes, the kind of its targets, and their shape without the batch."""

    loss: Any
    kind: str
    shape: tuple[int | None, ...]


def _alone(found: list[Any]) -> Any:
    """The only one, or all."""
    return found if len(found) > 1 else found[0]


class RandomModel:
    """A model with all that a step of it needs.

    Args:
        seed: The number that decides everything.
        steps: T of the inputs.

    Attributes:
        model: The model.
        heads: Its outputs.
        words: Its layers in words, for the message of a failed test.
    """

    def __init__(self, seed: int, steps: int = 7) -> None:
        keras.utils.set_random_seed(seed)
        self._random = np.random.default_rng(seed)
        self._steps = steps
        self._kinds: list[str] = []
        self._values: list[Drawn] = []
        self.heads: list[Head] = []
        self.words: list[str] = []
        self.model = self._drawn()

    def settings(self) -> Callable[[], dict[str, Any]]:
        """A function that makes the arguments of `compile`: SGD, whose steps are the gradients themselves."""
        limit = self._one_of({}, {}, {"clipnorm": 0.5}, {"global_clipnorm": 0.5}, {"weight_decay": 0.01})
        momentum = self._one_of(0.0, 0.9)
        several = len(self.heads) > 1
        factors = [0.5, 2.0] if several and self._chance(0.5) else None
        self.words.append(f"SGD momentum={momentum} {limit}, loss_weights={factors}")
        found = [head.loss for head in self.heads]
        return lambda: {
            "optimizer": keras.optimizers.SGD(0.05, momentum=momentum, **limit),
            "loss": _alone(found),
            "loss_weights": factors,
        }

    def batch(self, rows: int, steps: int | None = None) -> tuple[Any, Any]:
        """Inputs and targets; `steps` for inputs of any length, if the model has no others."""
        free = steps if steps is not None and set(self._kinds) == {"free"} else self._steps
        inputs = [self._input(kind, rows, free) for kind in self._kinds]
        targets = [self._targets(head, rows, free) for head in self.heads]
        return _alone(inputs), _alone(targets)

    def _one_of(self, *choices: Any) -> Any:
        return choices[int(self._random.integers(len(choices)))]

    def _chance(self, share: float) -> bool:
        return bool(self._random.random() < share)

    def _say(self, words: str, tensor: Any, masked: bool = False) -> Drawn:
        self.words.append(words)
        return Drawn(tensor, masked)

    def _drawn(self) -> keras.Model:
        inputs = [self._add_input() for _ in range(self._one_of(1, 1, 2))]
        for _ in range(int(self._random.integers(2, 7))):
            read = self._one_of(*self._values[-3:])
            layer = self._one_of(*(self._FOR_STEPS if read.has_steps else self._FOR_ROWS))
            self._values.append(layer(self, read))
        if not any("LSTM" in one for one in self.words):
            self._values.append(self._lstm(next(one for one in reversed(self._values) if one.has_steps)))
        outputs = [self._head(self._values[-1])]
        if self._chance(0.3):
            outputs.append(self._head(self._one_of(*self._values[-4:])))
        return keras.Model(_alone(inputs), _alone(outputs))

    def _add_input(self) -> Any:
        kind = self._one_of("series", "series", "ids", "padded ids", "free", "padded")
        self._kinds.append(kind)
        self.words.append(f"input {kind}")
        if "ids" in kind:
            given = keras.Input((self._steps,), dtype="int32")
            masked = kind == "padded ids"
            self._values.append(
                Drawn(layers.Embedding(WORDS, self._one_of(2, 5, 16), mask_zero=masked)(given), masked)
            )
            return given
        given = keras.Input((None if kind == "free" else self._steps, FEATURES))
        self._values.append(Drawn(layers.Masking()(given), True) if kind == "padded" else Drawn(given))
        return given

    def _lstm(self, read: Drawn) -> Drawn:
        units = self._one_of(*_UNITS)
        options: dict[str, Any] = {
            "return_sequences": self._chance(0.7),
            "use_bias": self._chance(0.85),
            "unit_forget_bias": self._chance(0.9),
            "activation": self._one_of("tanh", "tanh", "tanh", "relu", "elu", "leaky_relu", "softsign"),
            "recurrent_activation": self._one_of("sigmoid", "sigmoid", "sigmoid", "hard_sigmoid"),
            "kernel_regularizer": self._one_of(None, None, None, None, "l2"),
            "recurrent_initializer": "glorot_uniform",  # orthogonal takes longer
        }
        masked = read.masked and options["return_sequences"]
        words = f"LSTM({units}, {options})"
        if self._chance(0.3):
            mode = self._one_of("concat", "sum", "mul", "ave")
            layer = layers.Bidirectional(layers.LSTM(units, **options), merge_mode=mode)
            return self._say(f"Bidirectional {mode} {words}", layer(read.tensor), masked)
        options["go_backwards"] = self._chance(0.25)
        if self._chance(0.2):
            outputs, *states = layers.LSTM(units, return_state=True, **options)(read.tensor)
            self._values += map(Drawn, states)
            return self._say(f"{words} with states", outputs, masked)
        states = [one.tensor for one in self._values if not one.has_steps and one.features == units]
        first = states[-2:] if len(states) > 1 and self._chance(0.7) else None
        outputs = layers.LSTM(units, **options)(read.tensor, initial_state=first)
        return self._say(f"{words} from {'states' if first else 'zeros'}", outputs, masked)

    def _dense(self, read: Drawn) -> Drawn:
        layer: Any = layers.Dense(
            self._one_of(1, 4, 9, 16), activation=self._one_of(*_ACTIVATIONS), use_bias=self._chance(0.8)
        )
        words = f"Dense({layer.units}, {layer.activation.__name__})"
        if read.has_steps and self._chance(0.3):
            layer, words = layers.TimeDistributed(layer), f"TimeDistributed {words}"
        return self._say(words, layer(read.tensor), read.masked)

    def _normalized(self, read: Drawn) -> Drawn:
        if read.features == 1:
            # It would become 0, the kink of a ReLU.
            return self._dense(read)
        # A large epsilon, because a deviation near 0 would amplify rounding.
        if self._chance(0.6):
            layer = layers.LayerNormalization(-1, 0.01, self._chance(0.8), self._chance(0.8))
        elif read.masked:
            # On torch, stock Keras cannot normalise a single masked feature.
            return self._dense(read)
        else:
            layer = layers.BatchNormalization(epsilon=0.01)
        return self._say(type(layer).__name__, layer(read.tensor), read.masked)

    def _convolution(self, read: Drawn) -> Drawn:
        if read.steps is None or read.steps < 4:
            return self._dense(read)
        padding, strides = self._one_of("causal", "same", "valid"), self._one_of(1, 1, 2)
        layer = layers.Conv1D(
            self._one_of(2, 4, 6),
            self._one_of(1, 2, 3),
            strides,
            padding,
            dilation_rate=self._one_of(1, 2) if strides == 1 and padding != "valid" else 1,
            groups=self._one_of(1, 2) if read.features % 2 == 0 else 1,
            activation=self._one_of(None, "relu", "tanh"),
        )
        words = (
            f"Conv1D({layer.filters}, {layer.kernel_size}, {layer.strides}, {padding}, groups {layer.groups})"
        )
        return self._say(words, layer(read.tensor), read.masked)

    def _moved(self, read: Drawn) -> Drawn:
        if read.steps is None or read.steps < 4:
            return self._pooled(read)
        strides, padding = self._one_of(None, 1), self._one_of("valid", "same")
        layer = self._one_of(
            layers.MaxPooling1D(2, strides, padding),
            layers.AveragePooling1D(2, strides, padding),
            layers.UpSampling1D(2),
            layers.Cropping1D((1, 1)),
            layers.ZeroPadding1D((1, 2)),
        )
        return self._say(f"{type(layer).__name__}({strides}, {padding})", layer(read.tensor))

    def _pooled(self, read: Drawn) -> Drawn:
        layer = self._one_of(layers.GlobalAveragePooling1D(), layers.GlobalMaxPooling1D(), layers.Flatten())
        if read.steps is None and isinstance(layer, layers.Flatten):
            layer = layers.GlobalAveragePooling1D()
        return self._say(type(layer).__name__, layer(read.tensor))

    def _merged(self, read: Drawn) -> Drawn:
        layer = self._one_of(
            *(layers.Add(), layers.Multiply(), layers.Subtract(), layers.Average(), layers.Maximum()),
            *(layers.Minimum(), layers.Concatenate(), layers.Concatenate()),
        )
        alike = [one for one in self._values if one.has_steps == read.has_steps and one.steps == read.steps]
        if not isinstance(layer, layers.Concatenate):
            alike = [one for one in alike if one.features == read.features and one is not read]
        if not alike:
            return self._activated(read)
        other = self._one_of(*alike)
        return self._say(
            type(layer).__name__, layer([read.tensor, other.tensor]), read.masked or other.masked
        )

    def _activated(self, read: Drawn) -> Drawn:
        layer = self._one_of(
            layers.Activation(self._one_of(*_ACTIVATIONS[:-1])),
            layers.LeakyReLU(negative_slope=0.1),
            layers.Rescaling(0.5, 0.1),
        )
        return self._say(type(layer).__name__, layer(read.tensor), read.masked)

    def _attended(self, read: Drawn) -> Drawn:
        # On torch, the gradient of a query whose keys are all masked is wrong in stock Keras.
        if read.steps is None or read.masked:
            return self._dense(read)
        if self._chance(0.5):
            layer: Any = layers.Attention(use_scale=self._chance(0.5))
            return self._say("Attention", layer([read.tensor, read.tensor]))
        return self._say(
            "MultiHeadAttention", layers.MultiHeadAttention(2, 3)(read.tensor, read.tensor), False
        )

    def _repeated(self, read: Drawn) -> Drawn:
        return self._say("RepeatVector", layers.RepeatVector(self._one_of(1, 4, self._steps))(read.tensor))

    _FOR_STEPS = (
        *(_lstm, _lstm, _lstm, _lstm, _lstm, _lstm, _dense, _dense, _merged, _merged),
        *(_normalized, _convolution, _moved, _pooled, _activated, _attended),
    )
    _FOR_ROWS = (_dense, _dense, _normalized, _merged, _activated, _repeated)

    def _head(self, read: Drawn) -> Any:
        reduction = self._one_of(*["sum_over_batch_size"] * 4, "sum", "mean_with_sample_weight")
        smoothing = self._one_of(0.0, 0.1)
        loss, kind, activation = self._one_of(
            (losses.MeanSquaredError(reduction), "numbers", None),
            (losses.MeanAbsoluteError(reduction), "numbers", None),
            (losses.Huber(0.3, reduction), "numbers", "tanh"),
            (losses.LogCosh(reduction), "numbers", None),
            (losses.BinaryCrossentropy(False, smoothing, reduction=reduction), "bits", "sigmoid"),
            (losses.BinaryCrossentropy(True, smoothing, reduction=reduction), "bits", None),
            (losses.CategoricalCrossentropy(False, smoothing, reduction=reduction), "one hot", "softmax"),
            (losses.SparseCategoricalCrossentropy(False, reduction=reduction), "ids", "softmax"),
            (losses.SparseCategoricalCrossentropy(True, reduction=reduction), "ids", None),
        )
        output = layers.Dense(self._one_of(2, 5), activation=activation)(read.tensor)
        self.heads.append(Head(loss, kind, tuple(output.shape[1:])))
        self.words.append(f"{type(loss).__name__}({reduction}, {kind}, {activation})")
        return output

    def _input(self, kind: str, rows: int, steps: int) -> np.ndarray:
        if kind == "ids":
            return self._random.integers(0, WORDS, (rows, self._steps), np.int32)
        if kind in ("series", "free"):
            return self._random.standard_normal((rows, steps, FEATURES), np.float32)
        lengths = self._random.integers(1, self._steps + 1, rows)
        kept = np.arange(self._steps) < lengths[:, None]
        if kind == "padded ids":
            return np.where(kept, self._random.integers(1, WORDS, kept.shape), 0).astype(np.int32)
        numbers = self._random.standard_normal((*kept.shape, FEATURES), np.float32)
        return numbers * kept[..., None].astype(np.float32)

    def _targets(self, head: Head, rows: int, free: int) -> np.ndarray:
        shape = (rows, *(free if size is None else size for size in head.shape))
        if head.kind == "numbers":
            return self._random.standard_normal(shape, np.float32)
        if head.kind == "bits":
            return self._random.integers(0, 2, shape).astype(np.float32)
        ids = self._random.integers(0, shape[-1], shape[:-1]).astype(np.int32)
        return ids if head.kind == "ids" else np.eye(shape[-1], dtype=np.float32)[ids]
