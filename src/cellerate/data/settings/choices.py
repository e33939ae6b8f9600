"""The choices that a user has in reading data, each defined once."""

from typing import Literal

Missing = Literal["error", "drop", "ffill", "interpolate"]
Gaps = Literal["split", "error", "ignore"]
Duplicates = Literal["error", "first", "last", "mean"]
Storage = Literal["float32", "float16"]
Padding = Literal["right", "left"]
