"""Backtests: a forecaster at many times of the past, compared with the true values.

The folds, training anew for each, and the baselines before each origin; `backtest` is the door.
"""

from cellerate.tasks.backtest.run import backtest

__all__ = [
    "backtest",
]
