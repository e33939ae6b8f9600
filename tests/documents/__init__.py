"""The programs that Cellerate is made for: a reader's own Keras code, run as it is and accelerated."""
