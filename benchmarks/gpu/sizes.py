"""The sizes that the GPU suite checks and times, and their kernels; needs no framework and no GPU."""

import itertools
from collections.abc import Iterator
from typing import Any

from cellerate.kernels.cuda.kernel import Kernel
from cellerate.kernels.decoder.cuda import plan as decoder_plan
from cellerate.kernels.decoder.cuda.plan import PRECISIONS, Generator, Layer
from cellerate.kernels.lstm.cuda import plan, selfcheck
from cellerate.kernels.lstm.cuda.plan import Variant
from cellerate.kernels.lstm.spec import MASKED_OUTPUTS, LstmOptions

# The variants beyond the plain layer: the added or removed arguments, and the options.
VARIANTS: dict[str, dict[str, Any]] = {
    "plain": {},
    "masked": {"with_": ("mask",)},
    "relu": {"options": LstmOptions(activation="relu")},
    "recurrent dropout": {"with_": ("recurrent_dropout",)},
    "no bias": {"without": ("bias",)},
    "backwards": {"options": LstmOptions(go_backwards=True)},
    "silu, kept as pre-activations": {"options": LstmOptions(activation="silu")},
    "masked, backwards, recurrent dropout": {
        "with_": ("mask", "recurrent_dropout"),
        "options": LstmOptions(go_backwards=True),
    },
    **{
        f"masked, {name}": {"with_": ("mask",), "options": LstmOptions(masked_output=name)}
        for name in MASKED_OUTPUTS
    },
}
# A direction of a Bidirectional is "backwards".
TIMED_VARIANTS = ("masked", "relu", "recurrent dropout", "no bias", "backwards")
VARIED_PRECISIONS, VARIED_UNITS, VARIED_BATCH = ("bfloat16", "float32"), 512, 112

CHECKED_UNITS, CHECKED_BATCH = (512, 256, 128, 1024, 64, 640, 200, 32, 1), 130
CHECKED_VARIANT_UNITS, CHECKED_VARIANT_BATCH = 72, 19
SMALL_UNITS, SMALL_BATCH = (64, 520), 9

STEPS = 100
FIRST_UNITS, FIRST_BATCHES = 512, (112, 128, 224, 256)
TIMED_UNITS, TIMED_BATCHES = (512, 256, 128, 1024), (16, 64, 128, 256, 1024)

GENERATED_UNITS, GENERATED_BATCHES = (512, 256), (1, 8, 56, 112, 224, 1024, 8192)
V, EMBEDDING = 96, 64

FIT_UNITS, FIT_BACKENDS, FIT_POLICIES = 512, ("jax", "torch"), ("mixed_bfloat16", "float32")
CHART_UNITS, CHART_BATCHES = 128, (1, 8, 64, 512, 4096)


def kernels() -> Iterator[Kernel]:
    """The kernels of the parts, in order; for all row counts and ways, because the suite chooses by measurement."""
    seen: set[Kernel] = set()
    for one in _wanted():
        fitting = decoder_plan.fitting(one) if isinstance(one, Generator) else plan.fitting(one, plan.WAYS)
        for kernel in fitting:
            if kernel not in seen:
                seen.add(kernel)
                yield kernel


def _wanted() -> Iterator[Kernel]:
    for case in itertools.chain(*selfcheck.CASES.values()):
        yield from (case.variant("forward"), case.variant("backward"))
    yield from _layer("bfloat16", FIRST_UNITS)
    # float32 is for the check of the logits, bfloat16 for the times.
    for precision, units in itertools.product(("bfloat16", "float32"), GENERATED_UNITS):
        yield Generator(precision, (Layer(units),), V, V)
    for precision in ("float32", "bfloat16"):
        yield from _layer(precision, FIT_UNITS)
    for precision, units in itertools.product(PRECISIONS, TIMED_UNITS):
        yield from _layer(precision, units)
    for precision, name in itertools.product(VARIED_PRECISIONS, TIMED_VARIANTS):
        yield from _layer(precision, VARIED_UNITS, **VARIANTS[name])
    for precision in PRECISIONS:
        for variant in VARIANTS.values():
            yield from _layer(precision, CHECKED_VARIANT_UNITS, **variant)
        for units in CHECKED_UNITS:
            yield from _layer(precision, units)
    yield from _layer("float32", CHART_UNITS, **VARIANTS["relu"])


def _layer(
    precision: str,
    units: int,
    *,
    with_: tuple[str, ...] = (),
    without: tuple[str, ...] = (),
    options: LstmOptions = LstmOptions(),  # noqa: B008 (it is frozen)
) -> Iterator[Kernel]:
    """Both directions of a layer."""
    activations = (options.activation, options.recurrent_activation)
    for direction in ("forward", "backward"):
        yield Variant(
            direction,
            precision,
            plan.padded_units(units),
            8,
            *activations,
            masked="mask" in with_,
            dropped="recurrent_dropout" in with_,
        )
