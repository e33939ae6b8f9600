"""The random numbers of a captured training step, drawn right before each replay as Keras's own step draws them.

A graph cannot draw them itself: for each drawing Keras seeds a generator with a number that it reads from the device,
the state of a `SeedGenerator`. That state advances in the graph as in Keras's step. This module keeps a copy of it on
the host, which needs no reading, and draws outside the graph.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch.utils import _pytree as pytree

_SEEDS = 0xFFFFFFFF  # Keras seeds generators with 32 bits


class NotCapturableError(RuntimeError):
    """Raised if a step does what a graph cannot."""


class SeedStates:
    """The next seed of each state on the device from which a step has drawn."""

    def __init__(self) -> None:
        # By state: the version at which it was read last, and the next seed.
        self._next: dict[torch.Tensor, tuple[int, int]] = {}

    def next(self, state: torch.Tensor) -> int:
        """The seed that Keras would take next; read from the device only if other code has changed the state."""
        version, seed = self._next.get(state, (-1, 0))
        if version != state._version:
            seed = sum(state.tolist())
            self._next[state] = state._version, seed
        return seed

    def advance(self, state: torch.Tensor, drawings: int) -> None:
        """Notes that a replay has advanced the state by a number of drawings."""
        seed = self._next[state][1] + drawings
        # A replay changes the state without torch noticing; others must see that it changed.
        torch.autograd.graph.increment_version(state)
        self._next[state] = state._version, seed


class Draws:
    """The drawings of one captured step.

    Args:
        states: The copies of the seeds' states.
    """

    def __init__(self, states: SeedStates) -> None:
        self._states = states
        self._drawings: dict[torch.Tensor, int] = {}  # of each state in a step
        self._generators: list[torch.Generator] = []
        self._work: list[Callable[[], object]] = []

    def generator(self, state: torch.Tensor) -> torch.Generator:
        """During the capture: replaces the generator that Keras seeds from a state; seeded before each replay."""
        made = torch.Generator(state.device)
        count = self._drawings[state] = self._drawings.get(state, 0) + 1
        self._generators.append(made)

        def seed() -> None:
            made.manual_seed(self._states.next(state) + count - 1 & _SEEDS)

        self._work.append(seed)
        return made

    def record(
        self,
        function: Callable[..., Any],
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        constants: Mapping[torch.Tensor, Callable[[], torch.Tensor]],
    ) -> torch.Tensor:
        """During the capture: the tensor that will hold what a function with a `generator` has drawn for a replay.

        Args:
            function: The function.
            args: Its positional arguments.
            kwargs: Its keyword arguments.
            constants: How to make the tensors that are known before the graph runs.

        Raises:
            NotCapturableError: The generator is not from `generator`, or the function takes what the step computes.
        """
        generator = kwargs["generator"]
        leaves, structure = pytree.tree_flatten((args, kwargs))
        tensors = [leaf for leaf in leaves if isinstance(leaf, torch.Tensor)]
        known = any(generator is made for made in self._generators)
        if not known or any(tensor not in constants for tensor in tensors):
            raise NotCapturableError(
                f"the step draws random numbers ({function.__name__}) from what only the GPU knows"
            )
        # Computes nothing, and gives only the shape and the dtype.
        like_args, like = pytree.tree_map_only(torch.Tensor, lambda tensor: tensor.to("meta"), (args, kwargs))
        like |= {"generator": None} | ({"device": "meta"} if "device" in like else {})
        place = torch.empty_like(function(*like_args, **like), device=generator.device)
        # Made again: the tensors of the capture belong to the graph and hold nothing yet.
        makers = [
            functools.cache(constants[leaf])
            if isinstance(leaf, torch.Tensor)
            else functools.partial(_same, leaf)
            for leaf in leaves
        ]

        def draw() -> None:
            args, kwargs = pytree.tree_unflatten([make() for make in makers], structure)
            place.copy_(function(*args, **kwargs))

        self._work.append(draw)
        return place

    def draw(self) -> None:
        """Draws for the next replay."""
        for work in self._work:
            work()

    def advance(self) -> None:
        """Notes that the graph has run."""
        for state, drawings in self._drawings.items():
            self._states.advance(state, drawings)


def _same(value: Any) -> Any:
    return value
