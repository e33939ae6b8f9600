"""Refuses sizes of a training that this machine's memory cannot hold, before a framework reserves it."""

from __future__ import annotations

from typing import Any

from cellerate.errors import ConfigError
from cellerate.format import size
from cellerate.machine.environment import memory_bytes
from cellerate.messages import argument
from cellerate.settings import changed_fields

_FLOAT_BYTES = 4
_GATES = {"lstm": 4, "gru": 3, "simple_rnn": 1}
# The fields of settings that decide the size of a model, and the names that tasks have for the steps of a row.
_SIZES = ("units", "layers", "embedding", "latent")
_STEPS = ("window", "length", "max_length")


def check_memory(data: Any, architecture: Any) -> None:
    """Raises `ConfigError` for a model or a batch that is larger than the machine's memory.

    The bounds are low: they leave out states, copies and the optimizer, so a training may still run out of memory.

    Args:
        data: The settings of a task's data.
        architecture: The settings of its model; None for a model that exists.
    """
    if architecture is not None:
        needed = 2 * _FLOAT_BYTES * _weights(architecture)
        _check(needed, "the weights of the model and their gradients", architecture, _SIZES)
    steps = next(getattr(data, name) for name in _STEPS if hasattr(data, name))
    _check(_FLOAT_BYTES * data.batch_size * steps, "a single batch", data, ("batch_size", *_STEPS))


def _weights(architecture: Any) -> int:
    """The least number of weights of a model."""
    units, layers = architecture.units, getattr(architecture, "layers", 1)
    inputs = getattr(architecture, "embedding", 1)
    gates = _GATES[getattr(architecture, "cell", "lstm")]
    recurrent = gates * units * (inputs + units + 2 * units * (layers - 1))
    return int(recurrent + units * getattr(architecture, "latent", 0))


def _check(needed: int, what: str, settings: Any, names: tuple[str, ...]) -> None:
    if needed <= (there := memory_bytes()):
        return
    named = [argument(name, value) for name, value in changed_fields(settings).items() if name in names]
    raise ConfigError(
        f"{' and '.join(named)} would need {size(needed)} of memory for {what}, and this machine has "
        f"{size(there)}: give smaller values."
    )
