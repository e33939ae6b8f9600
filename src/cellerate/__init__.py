"""Cellerate makes LSTMs fast for Keras users: train, explain, generate, forecast, embed.

Importing this package imports no framework: each public name is loaded when it is first used.
"""

from importlib import import_module
from typing import Any

__version__ = "0.1.0"

# Public name → the module it lives in. `tests/test_public_api.py` holds this table against `__all__`.
_EXPORTS = {
    "CellerateError": "cellerate.errors",
    "PackedModel": "cellerate.runtime.packed",
    "QualityGate": "cellerate.compress.record",
    "SamplingRules": "cellerate.kernels.decoder.sampling",
    "TaskRecord": "cellerate.models.storage",
    "accelerate": "cellerate.layers.accelerate",
    "backtest": "cellerate.tasks.backtest.run",
    "detect": "cellerate.tasks.detect",
    "disable": "cellerate.layers.accelerate",
    "distill": "cellerate.compress.distill",
    "embed": "cellerate.tasks.inference",
    "enable": "cellerate.layers.accelerate",
    "evaluate": "cellerate.tasks.inference",
    "explain": "cellerate.layers.explain",
    "export": "cellerate.tasks.exporting",
    "forecast": "cellerate.tasks.inference",
    "generate": "cellerate.tasks.inference",
    "load": "cellerate.runtime.packed",
    "load_model": "cellerate.models.storage",
    "optimize": "cellerate.optimization.workflow",
    "pack": "cellerate.tasks.packing",
    "profile": "cellerate.observe.profiling.training",
    "prune": "cellerate.compress.prune",
    "quantize": "cellerate.compress.quantize",
    "restore": "cellerate.layers.accelerate",
    "save_model": "cellerate.models.storage",
    "select_backend": "cellerate.machine.environment",
    "set_num_threads": "cellerate.kernels.native",
    "sparsify": "cellerate.compress.sparsify",
    "train_embed": "cellerate.tasks.train",
    "train_series": "cellerate.tasks.train",
    "train_text": "cellerate.tasks.train",
}

__all__ = [*_EXPORTS, "__version__"]


def __getattr__(name: str) -> Any:
    if name in _EXPORTS:
        try:
            value = getattr(import_module(_EXPORTS[name]), name)
        except ModuleNotFoundError as error:
            if error.name not in ("keras", "h5py"):
                raise
            from cellerate.errors import BackendError

            raise BackendError(
                f"cellerate.{name} needs Keras, which is not installed. Install it with one of its backends: "
                "pip install 'cellerate[jax]' (or [tensorflow], [torch])"
            ) from error
        globals()[name] = value
        return value
    raise AttributeError(f"module 'cellerate' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted([*globals(), *__all__])
