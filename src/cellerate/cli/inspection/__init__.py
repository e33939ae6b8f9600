"""Verbs that explain, measure and report: a model, a run, this machine."""
