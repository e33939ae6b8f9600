"""Verbs that bring a model to where it runs: optimize, pack, export and serve."""
