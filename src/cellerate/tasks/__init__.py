"""The three tasks, text, series and embed: what strings data, model, loop and metric together."""
