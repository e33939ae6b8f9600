"""The server under load."""

__all__ = ["load", "table"]
