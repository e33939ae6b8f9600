"""Looking at runs: what they do now, and what they did."""
