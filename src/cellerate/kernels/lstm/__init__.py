"""One LSTM layer, forward and backward: what it computes (`spec`, `reference`), and the kernels that do it."""
