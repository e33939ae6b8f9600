"""Forecasts and backtests of ETTh1 beside Darts and NeuralForecast."""

__all__ = ["backtest", "data", "race", "table"]
