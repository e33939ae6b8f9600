"""Generation on NVIDIA GPUs, from Hopper on: one kernel that reads, scores and draws."""
