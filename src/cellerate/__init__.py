"""Cellerate makes LSTMs fast for Keras users: train, explain, generate, forecast, embed.

Importing this package imports no framework: each public name is loaded when it is first used.
"""

from importlib import import_module
from typing import Any

__version__ = "0.1.0"

# Public name → the module it lives in. `tests/test_public_api.py` holds this table against `__all__`.
_EXPORTS = {
    "AutoencoderArchitecture": "cellerate.tasks.settings",
    "Cancellation": "cellerate.kernels.decoder.sampling",
    "CellerateError": "cellerate.errors",
    "Completion": "cellerate.runtime.completion",
    "CompressionRecord": "cellerate.compress.record",
    "ForecastArchitecture": "cellerate.tasks.settings",
    "LineOptions": "cellerate.tasks.settings",
    "OptimizeSettings": "cellerate.optimize.settings",
    "PackedModel": "cellerate.runtime.packed",
    "QualityGate": "cellerate.compress.record",
    "Request": "cellerate.kernels.decoder.sampling",
    "SamplingRules": "cellerate.kernels.decoder.sampling",
    "Score": "cellerate.runtime.scoring",
    "SeriesOptions": "cellerate.tasks.settings",
    "Stepper": "cellerate.runtime.stepper",
    "TextArchitecture": "cellerate.tasks.settings",
    "TextOptions": "cellerate.tasks.settings",
    "TrainingSettings": "cellerate.training.settings",
    "accelerate": "cellerate.layers.accelerate",
    "disable": "cellerate.layers.accelerate",
    "distill": "cellerate.compress.distill",
    "embed_lines": "cellerate.tasks.embed",
    "enable": "cellerate.layers.accelerate",
    "evaluate_model": "cellerate.tasks.evaluation",
    "explain": "cellerate.layers.explain",
    "forecast_series": "cellerate.tasks.series",
    "generate": "cellerate.tasks.generating",
    "load": "cellerate.runtime.packed",
    "load_line_model": "cellerate.tasks.embed",
    "load_model": "cellerate.models.storage",
    "load_series_model": "cellerate.tasks.series",
    "load_text_model": "cellerate.tasks.text",
    "optimize": "cellerate.optimize",
    "pack": "cellerate.tasks.packing",
    "prune": "cellerate.compress.prune",
    "quantize": "cellerate.compress.quantize",
    "restore": "cellerate.layers.accelerate",
    "save_model": "cellerate.models.storage",
    "select_backend": "cellerate.machine.environment",
    "set_num_threads": "cellerate.kernels.native",
    "sparsify": "cellerate.compress.sparsify",
    "train_embed": "cellerate.tasks.embed",
    "train_series": "cellerate.tasks.series",
    "train_text": "cellerate.tasks.text",
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
