"""The facts of this computer: processors, memory, packages, backends, and its GPUs (`gpu`)."""
