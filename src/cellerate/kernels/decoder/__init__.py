"""Generation, one time step at a time: what a model can do (`contract`), how ids are drawn, and the kernels."""
