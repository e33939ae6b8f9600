"""Whole batches in one call, and one step of one stream: Cellerate beside Keras and other runtimes."""

__all__ = ["latency", "race"]
