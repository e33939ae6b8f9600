"""Which kernel a call of an LSTM layer gets on a GPU, by what was measured there.

A module of its own because `plan` knows sizes, `launch` the GPU and `trials` times, and here they come together.
"""

import functools

from cellerate.errors import BackendError
from cellerate.kernels.cuda import launch
from cellerate.kernels.lstm.cuda import plan, selfcheck
from cellerate.kernels.lstm.cuda.plan import Direction, Variant
from cellerate.kernels.lstm.spec import LstmOptions

MOST_ONES = 1024
"""Up to so many rows the gradient of a table is a product with the ids as ones and zeros; beyond, rows are added one by
one, in an order that differs from run to run."""


def variant_of(
    direction: Direction,
    number: str,
    shape: tuple[int, int, int],
    options: LstmOptions,
    *,
    masked: bool,
    dropped: bool,
    device: int,
) -> Variant:
    """The kernel for a call, with the number of rows that is the fastest.

    Args:
        direction: The forward or the backward recurrence.
        number: The type of h: "bfloat16", "float16" or "float32".
        shape: (B, T, H).
        options: Activations.
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
        Variant(direction, number, plan.padded_units(units), 8, *activations, masked, dropped), batch, device
    )


@functools.lru_cache(maxsize=1024)
def _chosen(variant: Variant, batch: int, device: int) -> Variant:
    def resident(one: Variant) -> int:
        return launch.resident(one, device)

    try:
        return plan.choose(variant, batch, resident, lambda one: selfcheck.step_us(one, device))
    except BackendError:
        # There is no memory to measure in, say: the fewest waves are not far from the best.
        return plan.choose(variant, batch, resident, lambda one: 1.0)
