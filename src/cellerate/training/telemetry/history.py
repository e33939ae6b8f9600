"""The history of a run on disk: one line per epoch as JSON and CSV, and the loss curve.

Every epoch rewrites the history files whole, from the list that the checkpoint carries, so a run that was killed
and resumed has no line twice.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from cellerate.files import atomic_write, write_csv

CURVE_COLUMNS = ("epoch", "step", "loss")


def write_history(
    folder: Path, history: Sequence[Mapping[str, Any]], curve: Sequence[Sequence[float]]
) -> None:
    """Writes `history.jsonl`, `history.csv` and `curve.csv` into `folder`.

    Args:
        folder: The run's folder.
        history: One record per epoch.
        curve: Rows of epoch, step and the mean loss of the epoch up to that step.
    """
    flat = [{k: v for k, v in record.items() if k != "metrics"} for record in history]
    with atomic_write(folder / "history.jsonl") as beside:
        beside.write_text("".join(json.dumps(record) + "\n" for record in flat))
    columns = list(dict.fromkeys(name for record in flat for name in record))
    write_csv(folder / "history.csv", columns, [[r.get(c, "") for c in columns] for r in flat])
    write_csv(folder / "curve.csv", CURVE_COLUMNS, curve)
