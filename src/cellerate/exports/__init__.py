"""Models as other runtimes read them, each written from the program of a packed model."""
