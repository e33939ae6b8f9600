"""The measurements of `optimize`, for each task."""
