"""Backtests: forecasts at many times of the past, compared with the true values.

`backtest` runs one; the other modules make the folds, the model of each fold, and the baselines.
"""

from cellerate.tasks.backtest.run import backtest

__all__ = [
    "backtest",
]
