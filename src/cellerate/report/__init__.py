"""Reports of `optimize`, drawn and compared from their records alone, and charts of forecasts."""
