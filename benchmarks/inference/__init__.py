"""Whole batches in one call: Cellerate beside Keras and other runtimes."""
