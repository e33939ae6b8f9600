"""Masked arrays of NumPy, whose masked values are not data."""

from __future__ import annotations

from typing import Any

import numpy as np


def unmasked(values: Any) -> Any:
    """NaN in place of the masked numbers of a masked array; anything else as it is."""
    if not np.ma.is_masked(values) or values.dtype.kind not in "fiub":
        return values
    exact = values.dtype if values.dtype.kind == "f" else np.float64
    return values.astype(exact).filled(np.nan)
