"""Training time against the size of the batch: `python -m benchmarks.gpu.chart [-o FILE]`.

It draws the newest `gpu-*.json` that has such times: one panel for each kind of layer, with Keras's own code and
Cellerate's on the CPU and the GPU, and the batch from which the GPU is faster than the CPU.
"""

import argparse
import itertools
import math
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from benchmarks.publishing import read

# Colours that red-green colour-blind readers can distinguish: Okabe & Ito, "Color Universal Design", 2008.
LINES = {
    ("cpu", "keras"): ("Keras, CPU", "#E69F00", "--"),
    ("cpu", "auto"): ("Cellerate, CPU", "#D55E00", "-"),
    ("gpu", "keras"): ("Keras, GPU", "#56B4E9", "--"),
    ("gpu", "auto"): ("Cellerate, GPU", "#0072B2", "-"),
}
Points = list[tuple[int, float]]


def lines_of(found: Sequence[dict[str, Any]], kind: str) -> dict[tuple[str, str], Points]:
    """The batches, ascending, and the milliseconds of a step, for each line."""
    lines: dict[tuple[str, str], Points] = {}
    for one in found:
        if one["variant"] == kind:
            point = (one["batch"], one["median_s"] * 1e3)
            lines.setdefault((one["device"], one["implementation"]), []).append(point)
    return {name: sorted(points) for name, points in lines.items()}


def crossing(cpu: Points, gpu: Points) -> float | None:
    """The smallest batch at which the GPU is faster, interpolated; None if it is faster at none or all."""
    theirs = dict(gpu)
    both = [(batch, ms / theirs[batch]) for batch, ms in cpu if batch in theirs]
    for (low, before), (high, after) in itertools.pairwise(both):
        if before < 1 <= after:
            share = -math.log(before) / (math.log(after) - math.log(before))
            return float(low * (high / low) ** share)
    return None


def draw(record: dict[str, Any], file: Path) -> None:
    """Write the chart of a record as PNG."""
    import matplotlib as mpl

    mpl.use("Agg")
    from matplotlib import pyplot as plt

    found = record["result"]["crossover"]
    kinds = list(dict.fromkeys(one["variant"] for one in found))
    figure, panels = plt.subplots(
        1, len(kinds), figsize=(4.6 * len(kinds), 4.2), sharey=True, squeeze=False, layout="constrained"
    )
    for panel, kind in zip(panels[0], kinds, strict=True):
        lines = lines_of(found, kind)
        for name, (label, colour, style) in LINES.items():
            if name in lines:
                batches, times = zip(*lines[name], strict=True)
                panel.plot(batches, times, style, color=colour, marker="o", markersize=4, label=label)
        place = crossing(lines.get(("cpu", "auto"), []), lines.get(("gpu", "auto"), []))
        if place is not None:
            panel.axvline(place, color="0.5", linewidth=1)
            panel.annotate(
                f"GPU faster\nfrom batch {place:.0f}", (place, 0.97), xycoords=("data", "axes fraction"),
                xytext=(4, 0), textcoords="offset points", va="top", fontsize=8, color="0.3",
            )  # fmt: skip
        panel.set(xscale="log", yscale="log", xlabel="batch", title=f"{kind} LSTM, {found[0]['units']} units")
        panel.set_xticks(sorted({one["batch"] for one in found}), minor=False)
        panel.get_xaxis().set_major_formatter("{x:.0f}")
        panel.minorticks_off()
        panel.grid(alpha=0.3)
    panels[0][0].set_ylabel("ms a training step")
    panels[0][-1].legend(fontsize=8)
    figure.suptitle(f"{record['gpu']} and {record['machine']['cpu']}", fontsize=9)
    figure.savefig(file, dpi=150)


def main() -> int:
    """Draw the newest record."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("-o", "--output", type=Path, default=Path("docs/measured/gpu-training-time.png"))
    arguments = parser.parse_args()
    record = next((one for one in read("gpu") if one["result"].get("crossover")), None)
    if record is None:
        print("no record of a GPU has these times yet: python -m benchmarks.gpu.suite", file=sys.stderr)
        return 1
    draw(record, arguments.output)
    print(f"written: {arguments.output}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
