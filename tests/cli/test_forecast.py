import numpy as np
import pytest

from cellerate.runtime.cell import write_cell
from support import packed_forecaster


@pytest.mark.parametrize(
    ("step", "ahead"),
    [("1h", "3 hours"), ("1D", "3 days"), ("15m", "3 rows"), (None, "3 rows")],
)
def test_title_of_a_chart_says_how_far_the_forecast_reaches(cellerate, tmp_path, monkeypatch, step, ahead):
    pytest.importorskip("matplotlib")
    monkeypatch.chdir(tmp_path)
    write_cell(
        tmp_path / "f.cell",
        packed_forecaster.program(),
        precision="float32",
        header=packed_forecaster.header(),
    )
    rows = [["load", "wind", "price"], *np.random.default_rng(0).normal(size=(20, 3)).round(3).tolist()]
    if step is not None:
        every = np.timedelta64(int(step[:-1]), step[-1])
        times = np.datetime64("2024-01-01", "m") + np.arange(20) * every
        rows = [[time, *row] for time, row in zip(["time", *times.astype(str)], rows, strict=True)]
    (tmp_path / "s.csv").write_text("\n".join(",".join(map(str, row)) for row in rows) + "\n")
    code, _, err = cellerate("forecast", "f.cell", "s.csv", "--plot", "f.svg", "-q")
    assert code == 0, err
    assert f"f: the next {ahead}<" in (tmp_path / "f.svg").read_text()
