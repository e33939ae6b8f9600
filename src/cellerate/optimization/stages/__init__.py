"""The stages of `optimize`; `registry` lists them."""
