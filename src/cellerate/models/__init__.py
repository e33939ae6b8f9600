"""Builders that return plain `keras.Model`s, and the file a trained model is kept in."""
