"""One loop around `fit`: settings, checkpoints, exact resume, precision choice, history and display."""
