"""The GPU suite: kernels and training, checked and timed on a machine that is available for minutes."""

__all__ = ["figures"]
