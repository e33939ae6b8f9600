"""The random numbers of a captured training step, drawn right before each replay as Keras's own step draws them.

A module of its own because a graph cannot do it: for each drawing Keras seeds a generator with a number that it reads
from the device, the state of a `SeedGenerator`. The state goes on in the graph as in Keras's step; here is a copy of
it that needs no reading, and with it the drawings are made outside.
"""

import functools
from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch.utils import _pytree as pytree

_SEEDS = 0xFFFFFFFF  # Keras seeds generators with 32 bits


class NotCapturableError(RuntimeError):
    """A step does what a graph cannot."""


class SeedStates:
    """What seeds come next, of the states on the device that a step has drawn from."""

    def __init__(self) -> None:
        # By state: the change of it that was read last, and the next seed.
        self._next: dict[torch.Tensor, tuple[int, int]] = {}

    def next(self, state: torch.Tensor) -> int:
        """The seed that Keras would take next; read from the device only where another has changed the state."""
        version, seed = self._next.get(state, (-1, 0))
        if version != state._version:
            seed = sum(state.tolist())
            self._next[state] = state._version, seed
        return seed

    def advance(self, state: torch.Tensor, drawings: int) -> None:
        """Notes that a replay has gone on by so many from `next`."""
        seed = self._next[state][1] + drawings
        # A replay counts as a change for all others who look.
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
        """While captured: the generator that Keras would seed from a state, which the step then goes on from."""
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
        """While captured: what a function with a `generator` will have drawn when the graph runs.

        Args:
            function: The function.
            args: Its arguments.
            kwargs: Those with names.
            constants: What makes the tensors that are known before the graph runs.

        Raises:
            NotCapturableError: The generator is of another kind, or the function takes what the step computes.
        """
        generator = kwargs["generator"]
        leaves, structure = pytree.tree_flatten((args, kwargs))
        tensors = [leaf for leaf in leaves if isinstance(leaf, torch.Tensor)]
        known = any(generator is made for made in self._generators)
        if not known or any(tensor not in constants for tensor in tensors):
            raise NotCapturableError(
                f"the step draws random numbers ({function.__name__}) from what only the GPU knows"
            )
        # Computes nothing: gives the shape and the dtype.
        like_args, like = pytree.tree_map_only(torch.Tensor, lambda tensor: tensor.to("meta"), (args, kwargs))
        like |= {"generator": None} | ({"device": "meta"} if "device" in like else {})
        place = torch.empty_like(function(*like_args, **like), device=generator.device)
        # Made anew: what the capture made is the graph's, and so far holds nothing.
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
