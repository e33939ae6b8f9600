"""The GPU suite: kernels and training, checked and timed on a machine that is lent for minutes."""

__all__ = ["figures"]
