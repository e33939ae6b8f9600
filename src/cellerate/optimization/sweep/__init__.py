"""Sweeps: the effects of other training settings, measured side by side; `sweep` is the entry point.

A sweep is not a stage of `optimize`, which begins with a trained model and keeps its settings of training.
"""

from cellerate.optimization.sweep.axes import Axis, axes_of, written
from cellerate.optimization.sweep.settings import SweepSettings
from cellerate.optimization.sweep.sweeping import sweep
from cellerate.optimization.sweep.view import lines_of

__all__ = ["Axis", "SweepSettings", "axes_of", "lines_of", "sweep", "written"]
