"""The tables and the chart of the pages, made of results alone."""

__all__ = ["by_case", "headline", "standings"]
