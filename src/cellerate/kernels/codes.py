"""Activations, masked outputs and functions as the numbers that a call carries: a name's place in the core's own list.

Without the core the lists are Python's, and nothing but the inverse functions here reads the numbers.
"""

from __future__ import annotations

from cellerate import activations
from cellerate.kernels import native
from cellerate.kernels.operation import Codes
from cellerate.program import MASKED_OUTPUTS


def of_activation(activation: str) -> Codes:
    """An activation's code, and the bits of its parameters.

    Raises:
        ConfigError: See `activations.read`.
    """
    name, bits = activations.parameter_bits(activation)
    return _activations().index(name), *bits


def activation_of(codes: Codes) -> str:
    """The inverse of `of_activation`."""
    return activations.of_bits(_activations()[codes[0]], codes[1:])


def of_masked_output(name: str) -> int:
    """The code of one of `program.MASKED_OUTPUTS`."""
    return _masked_outputs().index(name)


def masked_output_of(code: int) -> str:
    """The inverse of `of_masked_output`."""
    return _masked_outputs()[code]


def of_function(name: str) -> int:
    """The code of a function or relation of a node."""
    names: tuple[str, ...] = native.own_list("FUNCTIONS", ())
    return names.index(name)


def _activations() -> tuple[str, ...]:
    return native.own_list("ACTIVATIONS", activations.KERNEL_ACTIVATIONS)


def _masked_outputs() -> tuple[str, ...]:
    return native.own_list("MASKED_OUTPUTS", MASKED_OUTPUTS)
