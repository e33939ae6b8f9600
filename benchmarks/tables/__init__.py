"""The tables and the chart of the pages, made of results alone."""
