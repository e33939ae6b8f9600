"""A single operation of a program, with random arrays."""

import numpy as np

from cellerate.program import Node
from cellerate.runtime.program import operations

B, T, F = 5, 7, 3


def draw(*shape, seed=0):
    return np.random.default_rng([seed, *shape]).standard_normal(shape).astype(np.float32)


def scattered(*shape, seed=0):
    return np.random.default_rng([seed, *shape]).random(shape) < 0.5


def node(op, arrays=None, **options):
    return operations.prepared(Node(op, f"the {op}", {}, arrays or {}, options), {})


def run(op, arrays=None, given=None, **options):
    result = operations.run(node(op, arrays, **options), given)
    assert result.flags.c_contiguous
    return result
