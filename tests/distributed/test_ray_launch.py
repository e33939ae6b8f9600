"""What is said to workers on a Ray cluster; training on one is in `test_ray.py`."""

import pytest

from cellerate.distributed.ray_launch import _again


@pytest.mark.parametrize("more", [[], ["--overwrite"], ["--resume"]], ids=str)
def test_command_that_goes_on_after_a_failure_replaces_nothing(more):
    words = ["cellerate", "train", "text", "t.txt", "-o", "m.keras"]
    assert _again([*words, *more]) == [*words, "--resume"]
