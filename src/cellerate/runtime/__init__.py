"""Sampling and generation that know neither Keras nor a framework."""
