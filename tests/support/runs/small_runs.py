"""Data and options for a training of each task that takes a second."""

import csv
from pathlib import Path

import numpy as np

SMALL = {
    "text": "--embedding 4 --units 6 --length 6 --batch-size 8 --epochs 1 --validation-fraction 0.1",
    "series": "--target load --window 6 --horizon 2 --units 4 --batch-size 16 --epochs 1",
    "embed": "--embedding 4 --units 5 --latent 6 --max-length 8 --batch-size 4 --epochs 1",
}
"""What such a training is given, by task."""


def write_inputs(folder: Path) -> None:
    """Write a text (t.txt), a series (s.csv) and lines (l.txt)."""
    text = "".join(f"the {a} sat on the {b}.\n" for a in ("cat", "dog") for b in ("mat", "hat"))
    (folder / "t.txt").write_text(text * 8)
    (folder / "l.txt").write_text("red hat\nblue\n\nold cow\nten bees\n" * 3)
    with (folder / "s.csv").open("w", newline="") as file:
        table = csv.writer(file)
        table.writerow(["date", "load", "other"])
        for n in range(120):
            day = f"2024-01-{1 + n // 24:02d} {n % 24:02d}:00:00"
            table.writerow([day, f"{np.sin(n / 3):.4f}", f"{np.cos(n / 3):.4f}"])
