"""What `optimize` measures a model with, for each task."""
