"""The code specific to one Keras backend: compiling a step, datasets, and Cellerate's kernels as operators."""
