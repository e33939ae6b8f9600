"""Smaller models of like quality: quantised, pruned, distilled; each beside a record of what it cost."""
