"""Batches for the user's own `fit`: `cellerate.windows` and `cellerate.text_batches`."""
