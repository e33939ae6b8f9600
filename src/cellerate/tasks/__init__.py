"""The three tasks text, series and embed: each combines data, model, training loop and metric."""
