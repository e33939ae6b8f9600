"""Windows over series and text, with their covariates and scaling, as sources of batches.

A source never stores windows: it gathers the rows of a batch when the batch is requested.
"""

from cellerate.data.windows.changed import ChangedBatches, MeanOverItems
from cellerate.data.windows.covariate_batches import CovariateBatches
from cellerate.data.windows.covariates import (
    NO_COVARIATES,
    Covariates,
    Framing,
    Inputs,
    ModelUnits,
    model_inputs,
)
from cellerate.data.windows.sampled import SampledBatches, spread, spread_within
from cellerate.data.windows.scaler import Scaler, held_by
from cellerate.data.windows.series_scaler import SeriesScaler, known_medians
from cellerate.data.windows.shares import share_of
from cellerate.data.windows.text_windows import StreamBatches, TextBatches
from cellerate.data.windows.windows import SeriesBatches, WindowSettings, WindowSource

__all__ = [
    "NO_COVARIATES",
    "ChangedBatches",
    "CovariateBatches",
    "Covariates",
    "Framing",
    "Inputs",
    "MeanOverItems",
    "ModelUnits",
    "SampledBatches",
    "Scaler",
    "SeriesBatches",
    "SeriesScaler",
    "StreamBatches",
    "TextBatches",
    "WindowSettings",
    "WindowSource",
    "held_by",
    "known_medians",
    "model_inputs",
    "share_of",
    "spread",
    "spread_within",
]
