"""Keras's variables while the engine has their values.

The engine changes weights, slots, counters and metrics in its own arrays for many steps, and meanwhile the variables
are stale. So each variable is lent: its class becomes a subclass that copies all values back to the variables before
one is read or written. A callback, a checkpoint or a second model then reads the values that stock Keras would have.

On torch the arrays of the weights are the variables' own memory, so weights need no copy.
"""

from __future__ import annotations

import functools
import threading
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import keras
import numpy as np

from cellerate.keras_graph.keras_backend import stored
from cellerate.layers import fused


class Lender:
    """Some variables and the engine's arrays for them.

    Attributes:
        lent: Whether the arrays have the current values, and the variables do not.
        lock: Held while the arrays change: another thread that reads a variable waits for the end of the step.

    Args:
        variables: Keras variables.
        shared: The variables, on torch, whose own memory becomes the arrays.
        fixed: Variables whose values must not change.
    """

    def __init__(
        self, variables: Iterable[Any], shared: Iterable[Any] = (), fixed: Iterable[Any] = ()
    ) -> None:
        self.lent = False
        self.lock = threading.RLock()
        self._shared = {id(variable): variable for variable in shared}
        self._fixed = [(variable, _copy(variable)) for variable in fixed]
        everything = {id(variable): variable for variable in variables}
        self._copied = {key: variable for key, variable in everything.items() if key not in self._shared}
        self._arrays = {
            **{key: _memory(variable) for key, variable in self._shared.items()},
            **{key: _copy(variable) for key, variable in self._copied.items()},
        }

    def array(self, variable: Any) -> np.ndarray:
        """The engine's array of a variable."""
        return self._arrays[id(variable)]

    def take(self) -> bool:
        """Copies the values of all variables to the arrays, unless they are lent already.

        Returns:
            False if shared memory has moved, or if a fixed variable has changed.
        """
        with self.lock:
            return self.lent or self._taken()

    def _taken(self) -> bool:
        if any(not np.array_equal(_copy(variable), value) for variable, value in self._fixed):
            return False
        for variable in self._shared.values():
            if _memory(variable).ctypes.data != self.array(variable).ctypes.data:
                return False
        for variable in self._copied.values():
            np.copyto(self.array(variable), _copy(variable))
        for variable in self._copied.values():
            _lend(variable, self.give_back)
        self.lent = True
        return True

    def give_back(self) -> None:
        """Copies the arrays' values back to the variables, and ends the loan."""
        with self.lock:
            if not self.lent:
                return
            self.lent = False
            # The reader may be a function that is being traced.
            with fused.bridge().eagerly():
                for variable in self._copied.values():
                    variable.assign(np.array(self.array(variable)))
            # Until all values are back, another thread that reads or writes a variable waits for the lock.
            for variable in self._copied.values():
                _restore_class(variable)


class Values(Sequence[Any]):
    """A part of JAX's training state that reads its tensors only when used.

    Args:
        read: Returns the tensors, in order.
        count: The number of tensors.
    """

    def __init__(self, read: Callable[[], list[Any]], count: int) -> None:
        self._read = read
        self._count = count

    def __len__(self) -> int:
        return self._count

    def __getitem__(self, index: Any) -> Any:
        return self._read()[index]

    def __iter__(self) -> Any:
        return iter(self._read())


def _copy(variable: Any) -> np.ndarray:
    return np.array(keras.ops.convert_to_numpy(stored(variable)))


def _memory(variable: Any) -> np.ndarray:
    """The memory of a torch variable on the CPU."""
    found: np.ndarray = stored(variable).detach().numpy()
    return found


def _lend(variable: Any, give_back: Callable[[], None]) -> None:
    vars(variable)["_lent_by"] = give_back
    own: Any = type(variable)
    object.__setattr__(variable, "__class__", _lent_class(own))


def _restore_class(variable: Any) -> None:
    if "_lent_by" in vars(variable):
        object.__setattr__(variable, "__class__", type(variable).__mro__[1])
        del vars(variable)["_lent_by"]


def _end_loan(variable: Any) -> None:
    """Gives all variables back, unless another thread has just done so."""
    if (give_back := vars(variable).get("_lent_by")) is not None:
        give_back()


@functools.cache
def _lent_class(own: type) -> type:
    """The subclass that a variable of class `own` has while it is lent."""

    # The values go into the instance's dictionary: while all are given back, the class is still this one.
    def read(self: Any) -> Any:
        _end_loan(self)
        return vars(self)["_value"]

    def write(self: Any, value: Any) -> None:
        _end_loan(self)
        vars(self)["_value"] = value

    def reduce(self: Any, protocol: Any) -> Any:
        _end_loan(self)
        return self.__reduce_ex__(protocol)

    return type(own.__name__, (own,), {"_value": property(read, write), "__reduce_ex__": reduce})
