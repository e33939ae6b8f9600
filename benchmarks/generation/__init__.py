"""Text generation, a character at a time: Cellerate beside Keras and other runtimes."""

__all__ = ["onnx", "peers", "race", "runtimes"]
