"""The recurrence of an LSTM layer on NVIDIA GPUs, from Hopper on."""
