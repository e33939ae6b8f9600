"""What computes an LSTM layer: the words and checks all kernels share, the oracle, and the kernels."""
