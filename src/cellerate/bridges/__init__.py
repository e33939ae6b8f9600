"""What is specific to one Keras backend: compiling a step, its datasets, and Cellerate's kernels as its operators."""
