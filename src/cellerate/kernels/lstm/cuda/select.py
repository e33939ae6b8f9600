"""Selects the kernel for a call of an LSTM layer on a GPU, by measurements there.

It joins the sizes of `plan`, the GPU's limits from `launch` and the times from `selfcheck`.
"""

from __future__ import annotations

import functools

from cellerate.errors import BackendError
from cellerate.kernels.cuda import launch
from cellerate.kernels.lstm.cuda import plan, selfcheck
from cellerate.kernels.lstm.cuda.plan import Direction, Variant
from cellerate.kernels.lstm.spec import LstmOptions

MOST_ONES = 1024
"""The most rows of a table for which its gradient is a product with the ids as ones and zeros. In larger tables rows
are added one by one, in an order that differs from run to run."""


def variant_of(
    direction: Direction,
    precision: str,
    shape: tuple[int, int, int],
    options: LstmOptions,
    *,
    masked: bool,
    dropped: bool,
    device: int,
) -> Variant:
    """The kernel for a call, with the fastest number of rows and in the fastest way.

    Args:
        direction: The forward or the backward recurrence.
        precision: One of `sources.TYPES`.
        shape: (B, T, H).
        options: The activations; the rest is not used.
        masked: Whether there is a mask.
        dropped: Whether there are masks of recurrent dropout.
        device: The GPU's number.

    Raises:
        ConfigError: There is no kernel for it.
        BackendError: It cannot be compiled.
    """
    batch, _, units = shape
    activations = (options.activation, options.recurrent_activation)
    return _chosen(
        Variant(direction, precision, plan.padded_units(units), 8, *activations, masked, dropped),
        batch,
        device,
    )


@functools.lru_cache(maxsize=1024)
def _chosen(variant: Variant, batch: int, device: int) -> Variant:
    def resident(one: Variant) -> int:
        return launch.resident(one, device)

    # A caller who names these kernels gets the plain way even where it was not checked.
    ways = ["plain", *(way for way in _others(variant) if selfcheck.failure(device, way) is None)]
    try:
        return plan.choose(variant, batch, resident, lambda one: selfcheck.step_us(one, device), ways)
    except BackendError:
        # For example, there is no memory to measure in. The fewest waves are nearly the best choice.
        return plan.choose(variant, batch, resident, lambda one: 1.0)


def _others(variant: Variant) -> list[str]:
    """The ways beside the plain one in which there are kernels of the variant."""
    return [way for way in plan.WAYS if way != "plain" and plan.fitting(variant, (way,))]
