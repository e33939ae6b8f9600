"""Training: single steps, whole epochs, the kernel alone, and what feeds and distributes it."""
