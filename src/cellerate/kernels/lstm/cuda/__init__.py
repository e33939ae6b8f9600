"""The recurrence of an LSTM layer on NVIDIA GPUs, Hopper or later."""
