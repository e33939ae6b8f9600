"""The only code that touches the insides of Keras layers: which kernel runs, and one step at a time."""
