"""Generation on NVIDIA GPUs, Hopper or later: one kernel that reads, scores and draws ids."""
