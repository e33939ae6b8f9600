"""Stages of one model in several processes: which layers each has, and the steps that they train together."""

from cellerate.training.pipeline.costs import LayerCosts, measured_costs
from cellerate.training.pipeline.division import Layout, balanced, bubble_share, default_chunks, own_layout
from cellerate.training.pipeline.steps import Pipeline, StageReport, check_stages

__all__ = [
    "LayerCosts",
    "Layout",
    "Pipeline",
    "StageReport",
    "balanced",
    "bubble_share",
    "check_stages",
    "default_chunks",
    "measured_costs",
    "own_layout",
]
