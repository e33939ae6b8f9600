"""Cellerate makes LSTMs fast for Keras users: train, explain, generate, forecast, embed.

Importing this package imports no framework: each public name is loaded when it is first used.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from cellerate.compress.distill import distill as distill
    from cellerate.compress.prune import prune as prune
    from cellerate.compress.quantize import quantize as quantize
    from cellerate.compress.record import QualityGate as QualityGate
    from cellerate.compress.sparsify import sparsify as sparsify
    from cellerate.data.loaders.text import text_batches as text_batches
    from cellerate.data.loaders.windows import windows as windows
    from cellerate.errors import CellerateError as CellerateError
    from cellerate.kernels.decoder.sampling import SamplingRules as SamplingRules
    from cellerate.kernels.native import set_num_threads as set_num_threads
    from cellerate.layers.accelerate import (
        accelerate as accelerate,
        disable as disable,
        enable as enable,
        restore as restore,
    )
    from cellerate.layers.explain import explain as explain
    from cellerate.machine.environment import select_backend as select_backend
    from cellerate.models.storage import (
        TaskRecord as TaskRecord,
        load_model as load_model,
        save_model as save_model,
    )
    from cellerate.observe.profiling.training import profile as profile
    from cellerate.optimization.sweep.sweeping import sweep as sweep
    from cellerate.optimization.workflow import optimize as optimize
    from cellerate.runtime.packed import PackedModel as PackedModel, load as load
    from cellerate.tasks.backtest.run import backtest as backtest
    from cellerate.tasks.detect import detect as detect
    from cellerate.tasks.exporting import export as export
    from cellerate.tasks.inference import (
        embed as embed,
        evaluate as evaluate,
        forecast as forecast,
        generate as generate,
    )
    from cellerate.tasks.packing import pack as pack
    from cellerate.tasks.train import (
        train_embed as train_embed,
        train_series as train_series,
        train_text as train_text,
    )

__version__ = "0.2.0"

# Public name → its module. `tests/test_public_api.py` holds it against `__all__` and what type checkers see.
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
    "sweep": "cellerate.optimization.sweep.sweeping",
    "text_batches": "cellerate.data.loaders.text",
    "train_embed": "cellerate.tasks.train",
    "train_series": "cellerate.tasks.train",
    "train_text": "cellerate.tasks.train",
    "windows": "cellerate.data.loaders.windows",
}

__all__ = [*_EXPORTS, "__version__"]


if not TYPE_CHECKING:
    # Type checkers assume that a module with a `__getattr__` has every name.
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
