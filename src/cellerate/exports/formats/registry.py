"""The export formats, one row each. A new format is a module beside this one, and a row here."""

from __future__ import annotations

from cellerate.exports.formats.base import ExportFormat
from cellerate.exports.formats.litert import LITERT
from cellerate.exports.formats.onnx import ONNX
from cellerate.exports.formats.savedmodel import SAVEDMODEL

FORMATS: dict[str, ExportFormat] = {one.name: one for one in (ONNX, SAVEDMODEL, LITERT)}
"""The format of each value of `to`."""
