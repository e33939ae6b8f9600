"""Serving packed models over HTTP: many small states, batched exactly. Needs neither Keras nor a framework."""
