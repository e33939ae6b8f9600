"""A next-token model a step at a time: what it does (`contract`), how an id is drawn, and the kernels that do it."""
