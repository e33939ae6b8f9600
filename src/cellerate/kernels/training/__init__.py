"""A whole step of training as one native call."""
