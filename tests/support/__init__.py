"""What several folders of tests need: the emulated GPU, and layers for it."""
