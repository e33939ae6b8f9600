"""What this computer is: processors, memory, packages, backends, and its GPUs (`gpu`)."""
