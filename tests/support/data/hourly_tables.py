"""Tables with one row for each hour, as text."""

import numpy as np


def hours(count: int, start: str = "2016-07-01T00") -> list[str]:
    return [
        str(t).replace("T", " ")
        for t in np.datetime64(start, "s") + np.arange(count) * np.timedelta64(3600, "s")
    ]


def table(rows: int, times: list[str] | None = None, hole: dict[tuple[int, str], str] | None = None) -> str:
    """A CSV with columns date, a (the row), b (ten times it); `hole` replaces cells."""
    times = times or hours(rows)
    lines = ["date,a,b"]
    for row in range(rows):
        cells = {"a": str(float(row)), "b": str(row * 10)}
        for name in cells:
            cells[name] = (hole or {}).get((row, name), cells[name])
        lines.append(f"{times[row]},{cells['a']},{cells['b']}")
    return "\n".join(lines) + "\n"
