"""A packed model as one native call."""
