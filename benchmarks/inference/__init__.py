"""Whole batches in one call: Cellerate beside Keras and other runtimes."""

__all__ = ["race"]
