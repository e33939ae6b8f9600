"""Measures, once on each GPU, whether cuDNN runs an LSTM call faster than Cellerate's kernels.

It times the functions that the layer would call, on random arrays of the layer's sizes. It cannot use the layer's own
weights, which may be tracers at the time.
"""

from __future__ import annotations

import math
import weakref
from typing import Any

import keras
import numpy as np
from keras import layers
from keras.src.backend.common.symbolic_scope import in_symbolic_scope

from cellerate.keras_graph.keras_backend import recurrent_functions
from cellerate.kernels.cuda import launch, timing_cache
from cellerate.kernels.lstm.spec import LstmOptions
from cellerate.layers import fused
from cellerate.layers.conditions import Platform, cudnn_conditions
from cellerate.machine.environment import package_version
from cellerate.measure import time_alternating

# Limits on the measured sizes: the time grows linearly with steps and rows, and the memory belongs to the user.
_MOST_STEPS, _FEWEST_STEPS = 100, 8
_MOST_ROWS = 4096
_MOST_NUMBERS = 1 << 26
# The answers for each layer, by shape, mask, training and precision of the call.
_answers: weakref.WeakKeyDictionary[layers.LSTM, dict[Any, bool]] = weakref.WeakKeyDictionary()


def cudnn_is_faster(layer: layers.LSTM, sequences: Any, mask: Any, training: bool | None) -> bool:
    """True if Keras would run a call on cuDNN, and cuDNN is faster than Cellerate's kernels.

    Args:
        layer: The layer.
        sequences: (B, T, D); only its shape and device matter.
        mask: (B, T), or None.
        training: Whether a backward pass will follow.
    """
    # A symbolic call has placeholder sizes.
    if in_symbolic_scope() or not all(isinstance(size, int) for size in sequences.shape):
        return False
    precision = fused.bridge().cuda_precision(layer.compute_dtype)
    call = (tuple(sequences.shape), mask is None, bool(training), precision)
    answers = _answers.setdefault(layer, {})
    if call not in answers:
        found = _asked(layer, sequences, mask, bool(training), precision)
        if found is None:
            return False
        answers[call] = found
    return answers[call]


def _asked(layer: layers.LSTM, sequences: Any, mask: Any, training: bool, precision: str) -> bool | None:
    """The answer of `cudnn_is_faster`; None if it is not known yet and nothing can be measured now."""
    here, bridge = Platform.of(keras.backend.backend(), None), fused.bridge()
    conditions = cudnn_conditions(layer, "lstm", None if mask is None else "a layer", here)
    if not all(condition.holds for condition in conditions):
        return False
    batch, steps, inputs = sequences.shape
    # Rounded up to powers of two, so that similar sizes share one answer and few are measured.
    batch, steps, inputs = (1 << (max(1, int(n)) - 1).bit_length() for n in (batch, steps, inputs))
    dtype, units = str(layer.compute_dtype), int(layer.units)
    batch = min(batch, _MOST_ROWS)
    room = max(_FEWEST_STEPS, _MOST_NUMBERS // (batch * max(inputs, 4 * units)))
    steps = min(steps, _MOST_STEPS, room)
    sizes = (batch, steps, inputs, units)
    question = (
        f"{here.backend} LSTM, (B, T, D, H) = {sizes}, {precision}, {'training' if training else 'inference'}"
    )
    question += f", Keras {keras.__version__}, {here.backend} {package_version(here.backend)}"

    def measure() -> dict[str, float]:
        arrays = _arrays(sizes, dtype)
        contestants = {
            name: bridge.blocking(function, arrays, training, like=sequences)
            for name, function in (("cellerate-cuda", _ours), ("cudnn", _keras))
        }
        try:
            contestants["cudnn"]()
        except NotImplementedError:
            # cuDNN refuses this call, and Keras would compute it without cuDNN.
            del contestants["cudnn"]
        return {name: t.median_s for name, t in time_alternating(contestants, repeats=7, warmup=2).items()}

    gpu = launch.gpu_name(bridge.gpu_number(sequences))
    times = timing_cache.measured(gpu, question, measure if bridge.can_measure(sequences) else None)
    return times.get("cudnn", math.inf) < times["cellerate-cuda"] if times else None


def _ours(x: Any, h0: Any, c0: Any, kernel: Any, recurrent_kernel: Any, bias: Any) -> Any:
    arrays = {
        "x": x,
        "h0": h0,
        "c0": c0,
        "kernel": kernel,
        "recurrent_kernel": recurrent_kernel,
        "bias": bias,
    }
    return fused.bridge().cuda_lstm(arrays, LstmOptions(), True)[0]


def _keras(x: Any, h0: Any, c0: Any, kernel: Any, recurrent_kernel: Any, bias: Any) -> Any:
    """Keras's kernel as `LSTM.inner_loop` calls it; every call casts the weights, as a layer does."""
    return recurrent_functions(keras.backend.backend()).lstm(
        x,
        h0,
        c0,
        None,
        kernel=keras.ops.cast(kernel, x.dtype),
        recurrent_kernel=keras.ops.cast(recurrent_kernel, x.dtype),
        bias=keras.ops.cast(bias, x.dtype),
        activation=keras.activations.tanh,
        recurrent_activation=keras.activations.sigmoid,
        return_sequences=True,
    )[1]


def _arrays(sizes: tuple[int, int, int, int], dtype: str) -> list[tuple[np.ndarray, str]]:
    """x, h0, c0, kernel, recurrent_kernel and bias, each with the dtype that it has in a layer."""
    batch, steps, inputs, units = sizes
    rng = np.random.default_rng(0)
    narrow = [
        rng.normal(size=shape) * 0.5 for shape in ((batch, steps, inputs), (batch, units), (batch, units))
    ]
    weights = [
        rng.normal(size=shape) * 0.1 for shape in ((inputs, 4 * units), (units, 4 * units), (4 * units,))
    ]
    states = [(array.astype(np.float32), dtype) for array in narrow]
    return states + [(array.astype(np.float32), "float32") for array in weights]
