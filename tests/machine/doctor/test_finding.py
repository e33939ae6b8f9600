"""A finding and its fix."""

import pytest

from cellerate.machine.doctor.finding import parted


@pytest.mark.parametrize(
    ("reason", "parts"),
    [
        ("JAX has no CUDA plugin: pip install 'jax[cuda13]'", ("JAX has no CUDA plugin", "pip install 'jax[cuda13]'")),
        ("no driver (libcuda.so.1: cannot open): install it", ("no driver (libcuda.so.1: cannot open)", "install it")),
        ("no driver (libcuda.so.1: cannot open)", ("no driver (libcuda.so.1: cannot open)", "")),
        ("/dev/nvidia0 is missing: do x (in a container: y)", ("/dev/nvidia0 is missing", "do x (in a container: y)")),
    ],
)  # fmt: skip
def test_reason_is_parted_at_its_colon(reason, parts):
    assert parted(reason) == parts
