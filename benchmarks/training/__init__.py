"""Training: single steps, whole epochs, the kernel alone, and what feeds and distributes it."""

__all__ = [
    "kernel",
    "loader",
    "onednn",
    "planning",
    "race",
    "scale",
    "scale_table",
    "stages",
    "steps",
    "text",
    "typical",
]
