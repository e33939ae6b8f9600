"""Stages of one model in several processes: which layers each has, and the steps that they train together."""

from cellerate.training.pipeline.costs import divisible, planned_stages
from cellerate.training.pipeline.division import own_layout
from cellerate.training.pipeline.steps import DividedTraining, StageReport

__all__ = ["DividedTraining", "StageReport", "divisible", "own_layout", "planned_stages"]
