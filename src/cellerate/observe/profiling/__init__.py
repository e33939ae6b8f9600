"""Where the time of a model goes, and what would shorten it most."""
