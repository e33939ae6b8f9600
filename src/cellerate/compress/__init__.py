"""Makes models smaller at similar quality: quantised, pruned, distilled; each comes with a record of what it cost."""
