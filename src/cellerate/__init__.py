"""Cellerate makes LSTMs fast for Keras users: train, explain, generate, forecast, embed.

Importing this package imports no framework: each public name is loaded when it is first used.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

__version__ = "0.1.0"

# Public name → the module it lives in. `tests/test_public_api.py` holds this table against `__all__`.
_EXPORTS = {
    "explain": "cellerate.layers.explain",
}

__all__ = ["__version__", *sorted(_EXPORTS)]


def __getattr__(name: str) -> Any:
    if name in _EXPORTS:
        return getattr(import_module(_EXPORTS[name]), name)
    raise AttributeError(f"module 'cellerate' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted([*globals(), *__all__])
