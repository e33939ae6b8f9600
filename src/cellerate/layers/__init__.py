"""Changes and explains Keras layers: the kernel that runs, states, and training steps."""
