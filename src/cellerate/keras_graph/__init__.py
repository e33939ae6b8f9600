"""Reading a Keras model: its graph, the program it computes, which weights belong together, single steps."""
