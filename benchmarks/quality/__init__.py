"""The quality that models keep when they are packed, made smaller, or optimized."""

__all__ = ["compression", "optimizing", "packing"]
