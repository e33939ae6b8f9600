"""From files to batches: encoded text, series, lines, and windows that are indices, never copies."""
