"""Batches for a `fit` of one's own: `cellerate.windows` and `cellerate.text_batches`."""
