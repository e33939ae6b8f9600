"""What changes or explains a Keras layer: which kernel runs, and how states and training steps are handled."""
