"""Measures where a model spends its time, and which change would shorten it most."""
