"""Running packed models, and sampling from any model: imports neither Keras nor a framework."""
