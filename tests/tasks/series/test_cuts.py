"""Windows that are lost to gaps are counted, and what helps is named."""

from pathlib import Path

import numpy as np
import pytest

from cellerate.data.series.series import open_series
from cellerate.data.settings import Reading
from cellerate.tasks.series.cuts import lost_to_cuts

pytestmark = pytest.mark.keras


def bars(path: Path, days: int, values: str = "") -> Path:
    """Seven rows a day, as of a market."""
    first = np.datetime64("2024-01-01T09:30")
    lines = [
        f"{first + np.timedelta64(24 * day + hour, 'h')},{7 * day + hour}".replace("T", " ")
        for day in range(days)
        for hour in range(7)
    ]
    path.write_text("\n".join(["time,close", *lines]) + f"\n{values}")
    return path


def test_windows_lost_at_night_are_counted_and_what_helps_is_named(tmp_path: Path) -> None:
    data = open_series([bars(tmp_path / "bars.csv", 10)], Reading(targets=["close"]))
    said = lost_to_cuts(data, 4, 2)
    assert said.startswith(
        "20 of 65 windows of 4 rows and 2 to forecast cross none of the series' 9 gaps (the first "
    )
    assert "from 2024-01-01 15:30 to 2024-01-02 09:30; the frequency is hours)" in said
    assert "0 of 70 rows are in no window; the longest stretch has 7." in said
    assert "gaps='ignore'" in said
    assert "missing=" not in said
    assert "70 of 70 rows are in no window" in lost_to_cuts(data, 6, 2)
    assert (
        lost_to_cuts(open_series([tmp_path / "bars.csv"], Reading(targets=["close"], gaps="ignore")), 6, 2)
        == ""
    )


def test_rows_without_values_are_told_from_gaps(tmp_path: Path) -> None:
    path = tmp_path / "holes.csv"
    path.write_text(
        "row,value\n" + "".join(f"{number},{'' if number % 10 == 9 else number}\n" for number in range(95))
    )
    said = lost_to_cuts(
        open_series([path], Reading(targets=["value"], features=["value"], missing="drop")), 4, 2
    )
    assert "9 places where values are missing" in said
    assert "missing='interpolate'" in said
    assert "gaps=" not in said


def test_few_lost_windows_are_not_worth_a_word(tmp_path: Path) -> None:
    path = tmp_path / "one.csv"
    times = np.delete(np.arange(3000), 1000)
    path.write_text("time,value\n" + "\n".join(f"{time},{time % 7}" for time in times.tolist()) + "\n")
    data = open_series([path], Reading(targets=["value"], time_column="time"))
    assert len(data.segments) == 2
    assert lost_to_cuts(data, 6, 2) == ""
