"""The oracle: one direction of one LSTM layer in NumPy float64, slow and obvious.

The tests compare every other implementation with it, and compare it with Keras and, for the gradients, with
finite differences. It is written to be read beside the equations, so nothing is fused, merged over time or
cached for speed::

    z_t = x_t·kernel + h_{t-1}·recurrent_kernel + bias, cut into the gates z_i, z_f, z_c, z_o
    i, f, o = recurrent_activation(z_i, z_f, z_o)        g = activation(z_c)
    c_t = f * c_{t-1} + i * g                            h_t = o * activation(c_t)

`kernels.lstm.spec` says what the names mean.
"""

from __future__ import annotations

import dataclasses

import numpy as np

from cellerate.errors import ConfigError
from cellerate.kernels.lstm.reference_activations import activation_of
from cellerate.kernels.lstm.spec import Arguments, LstmOptions, check_shapes


@dataclasses.dataclass(frozen=True)
class Step:
    """The values of one step that `backward` needs.

    Attributes:
        t: Which step of the sequence it is.
        live: (B, 1) bool, the mask: whether the step counts.
        z: (B, 4H) the pre-activations.
        h_before: (B, H) h before the step.
        c_before: (B, H) c before the step.
        c_new: (B, H) c that the step computed, before the mask is applied.
    """

    t: int
    live: np.ndarray
    z: np.ndarray
    h_before: np.ndarray
    c_before: np.ndarray
    c_new: np.ndarray


@dataclasses.dataclass(frozen=True)
class Forward:
    """The results of `forward`, and what `backward` needs; all numbers are float64.

    Attributes:
        outputs: (B, T, H) in the order in which the steps were computed.
        h_T: (B, H) h after the last of them.
        c_T: (B, H) c after the last of them.
        x: (B, T, D) as given.
        kernel: (D, 4H) as given.
        recurrent_kernel: (H, 4H) as given.
        has_bias: Whether a bias was given.
        dropout: (4, B, D) as given, or ones.
        recurrent_dropout: (4, B, H) as given, or ones.
        steps: The T steps in the same order.
        options: As given.
    """

    outputs: np.ndarray
    h_T: np.ndarray
    c_T: np.ndarray
    x: np.ndarray
    kernel: np.ndarray
    recurrent_kernel: np.ndarray
    has_bias: bool
    dropout: np.ndarray
    recurrent_dropout: np.ndarray
    steps: tuple[Step, ...]
    options: LstmOptions


def forward(arguments: Arguments, options: LstmOptions = LstmOptions()) -> Forward:  # noqa: B008 - it is frozen
    """Runs the layer over a batch of sequences.

    Args:
        arguments: The arrays, with x; of any dtype, cast to float64 first. A dropout multiplies x, or h, before the
            product of each gate.
        options: The activations, the direction and what a masked step outputs.

    Returns:
        The outputs, the last states and what `backward` needs.

    Raises:
        ConfigError: A shape does not fit.

    Source:
        Hochreiter and Schmidhuber, "Long Short-Term Memory", 1997, with the forget gate of Gers,
        Schmidhuber and Cummins, "Learning to Forget", 2000; as `keras.layers.LSTMCell.call` computes it.
    """
    shape = check_shapes(arguments)
    B, T, D, H = shape.batch, shape.steps, shape.inputs, shape.units

    def otherwise(array: np.ndarray | None, default: np.ndarray) -> np.ndarray:
        return default if array is None else _float64(array)

    x, kernel, recurrent_kernel = map(_float64, (arguments.x, arguments.kernel, arguments.recurrent_kernel))
    bias = otherwise(arguments.bias, np.zeros(4 * H))
    dropout = otherwise(arguments.dropout, np.ones((4, B, D)))
    recurrent_dropout = otherwise(arguments.recurrent_dropout, np.ones((4, B, H)))
    mask = np.ones((B, T), bool) if arguments.mask is None else np.array(arguments.mask, bool)
    h = otherwise(arguments.h0, np.zeros((B, H)))
    c = otherwise(arguments.c0, np.zeros((B, H)))
    activation, gate = activation_of(options.activation), activation_of(options.recurrent_activation)

    outputs = np.zeros((B, T, H))
    steps = []
    for k in range(T):
        t = T - 1 - k if options.go_backwards else k
        live = mask[:, t, np.newaxis]

        z = np.zeros((B, 4 * H))
        for n, part in enumerate(_gates(H)):
            z[:, part] += (x[:, t] * dropout[n]) @ kernel[:, part]
            z[:, part] += (h * recurrent_dropout[n]) @ recurrent_kernel[:, part]
        z += bias
        z_i, z_f, z_c, z_o = np.split(z, 4, axis=1)
        c_new = gate.value(z_f) * c + gate.value(z_i) * activation.value(z_c)
        h_new = gate.value(z_o) * activation.value(c_new)

        steps.append(Step(t, live, z, h, c, c_new))
        if options.masked_output == "previous_state":
            masked = h
        elif options.masked_output == "previous_output" and k > 0:
            masked = outputs[:, k - 1]
        else:
            masked = np.zeros((B, H))
        outputs[:, k] = np.where(live, h_new, masked)
        h = np.where(live, h_new, h)
        c = np.where(live, c_new, c)
    return Forward(
        outputs,
        h,
        c,
        x,
        kernel,
        recurrent_kernel,
        arguments.bias is not None,
        dropout,
        recurrent_dropout,
        tuple(steps),
        options,
    )


def backward(
    forward: Forward,
    d_outputs: np.ndarray | None = None,
    d_h_T: np.ndarray | None = None,
    d_c_T: np.ndarray | None = None,
) -> dict[str, np.ndarray]:
    """The gradients of a loss with respect to the arguments of `forward`.

    Args:
        forward: What `forward` returned; it is not changed, so any number of calls may use it.
        d_outputs: (B, T, H) the gradient of the loss with respect to the outputs; None for zeros.
        d_h_T: (B, H) with respect to h_T; None for zeros.
        d_c_T: (B, H) with respect to c_T; None for zeros.

    Returns:
        The gradients by name: "x", "kernel", "recurrent_kernel", "bias" (if there was one), "h0" and "c0"
        (even if the states were left out), each in the shape of its argument.

    Raises:
        ConfigError: A gradient has another shape than its result.
    """
    H = forward.h_T.shape[1]
    options, dropout, recurrent_dropout = forward.options, forward.dropout, forward.recurrent_dropout
    activation, gate = activation_of(options.activation), activation_of(options.recurrent_activation)
    d_outputs = _cotangent("d_outputs", d_outputs, forward.outputs)
    d_h = _cotangent("d_h_T", d_h_T, forward.h_T)
    d_c = _cotangent("d_c_T", d_c_T, forward.c_T)

    d_x = np.zeros_like(forward.x)
    d_kernel = np.zeros_like(forward.kernel)
    d_recurrent_kernel = np.zeros_like(forward.recurrent_kernel)
    d_bias = np.zeros(4 * H)
    # The gradient that later masked steps pass back to the output of the step before them.
    d_repeated = np.zeros_like(d_h)
    for k, step in reversed(list(enumerate(forward.steps))):
        live = step.live
        d_output = d_outputs[:, k] + d_repeated
        d_h_new = np.where(live, d_h + d_output, 0)
        d_c_new = np.where(live, d_c, 0)
        # Where the mask is False, the states passed through unchanged, so their gradients do too; d_z is 0.
        d_h_before = np.where(live, 0, d_h)
        d_c_before = np.where(live, 0, d_c)
        if options.masked_output == "previous_output":
            d_repeated = np.where(live, 0, d_output)
        elif options.masked_output == "previous_state":
            d_h_before += np.where(live, 0, d_output)

        z_i, z_f, z_c, z_o = np.split(step.z, 4, axis=1)
        i, f, g, o = gate.value(z_i), gate.value(z_f), activation.value(z_c), gate.value(z_o)
        d_o = d_h_new * activation.value(step.c_new)
        d_c_new = d_c_new + d_h_new * o * activation.derivative(step.c_new)
        d_z = np.concatenate(
            [
                d_c_new * g * gate.derivative(z_i),
                d_c_new * step.c_before * gate.derivative(z_f),
                d_c_new * i * activation.derivative(z_c),
                d_o * gate.derivative(z_o),
            ],
            axis=1,
        )
        d_c_before += d_c_new * f

        d_bias += d_z.sum(axis=0)
        for n, part in enumerate(_gates(H)):
            d_kernel[:, part] += (forward.x[:, step.t] * dropout[n]).T @ d_z[:, part]
            d_x[:, step.t] += dropout[n] * (d_z[:, part] @ forward.kernel[:, part].T)
            d_recurrent_kernel[:, part] += (step.h_before * recurrent_dropout[n]).T @ d_z[:, part]
            d_h_before += recurrent_dropout[n] * (d_z[:, part] @ forward.recurrent_kernel[:, part].T)
        d_h, d_c = d_h_before, d_c_before

    gradients = {"x": d_x, "kernel": d_kernel, "recurrent_kernel": d_recurrent_kernel}
    if forward.has_bias:
        gradients["bias"] = d_bias
    return gradients | {"h0": d_h, "c0": d_c}


def _gates(H: int) -> list[slice]:
    """Where i, f, c and o are on the last axis of 4H."""
    return [slice(n * H, (n + 1) * H) for n in range(4)]


def _float64(values: np.ndarray) -> np.ndarray:
    # A copy: what backward needs must not change when the caller's arrays do.
    return np.array(values, np.float64)


def _cotangent(name: str, given: np.ndarray | None, result: np.ndarray) -> np.ndarray:
    if given is None:
        return np.zeros_like(result)
    if np.shape(given) != result.shape:
        axes = "(B, T, H)" if result.ndim == 3 else "(B, H)"
        raise ConfigError(
            f"{name} has shape {np.shape(given)}; expected {axes} = {result.shape}, the shape of the result. "
            "Give one number for each number of the result, or None for zeros."
        )
    return _float64(given)
