"""Exports for other runtimes, each written from the program of a packed model."""
