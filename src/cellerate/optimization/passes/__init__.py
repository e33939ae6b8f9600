"""The passes of `optimize`; `registry` lists them."""
