"""What `optimize` measures a model of each task with."""
