"""The recurrence of an LSTM layer on NVIDIA GPUs, from Hopper on: CUDA C++ that is compiled where it runs.

A package of its own because nothing else in Cellerate imports CUDA, and nothing here imports a framework.
"""
