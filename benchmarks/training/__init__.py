"""Training: single steps, whole epochs, the kernel alone, loaders, and training in several processes."""

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
