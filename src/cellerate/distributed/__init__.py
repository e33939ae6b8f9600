"""Several processes that train one model, on one machine or many: to start, to join, to measure their gain."""
