"""Sessions of a forecaster that reads a whole window at once keep the window as their state."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from cellerate.errors import DataError
from cellerate.runtime.packed import PackedModel, load
from cellerate.serving.sessions.pushes import Push
from cellerate.serving.sessions.series_streams import WindowStreams, session_streams
from cellerate.serving.sessions.sessions import Sessions
from support.graphs import draw
from support.servers import SCALER, window_cell

WINDOW = 6


@pytest.fixture(params=[(), (0.1, 0.5, 0.9)], ids=["point", "quantiles"])
def model(tmp_path: Path, request: Any) -> PackedModel:
    return load(window_cell(tmp_path / "w.cell", quantiles=request.param))


def series(rows: int = 40, seed: int = 0) -> np.ndarray:
    return draw(rows, 2, seed=seed) * SCALER.scale + SCALER.mean


def read(sessions: Sessions, name: str, rows: np.ndarray, **further: Any) -> dict[str, np.ndarray]:
    (result,) = sessions.push([Push(name, {"series": rows}, **further)])
    if isinstance(result, Exception):
        raise result
    return result


def test_session_of_a_window_model_gives_the_forecasts_and_scores_of_its_windows(model):
    assert isinstance(session_streams(model), WindowStreams)
    rows = series()
    sessions = Sessions(model)
    sessions.open("a")
    middle = 1 if model.quantiles else None
    before: Any = None
    for n in range(len(rows)):
        found = read(sessions, "a", rows[n : n + 1])
        if n + 1 < WINDOW:
            assert np.isnan(found["forecast"]).all() and np.isnan(found["score"]).all()
            continue
        right = model.forecast(rows[n + 1 - WINDOW : n + 1])
        np.testing.assert_allclose(found["forecast"], right, rtol=1e-5)
        if before is not None:
            expected = before[0] if middle is None else before[0, :, middle]
            error = (rows[n] - expected) / SCALER.scale
            np.testing.assert_allclose(found["score"], np.sqrt(np.mean(error**2)), rtol=1e-3)
        before = right


def test_pushes_cut_anywhere_and_exported_give_the_bits_of_one(model, tmp_path):
    rows = series()
    whole, cut = Sessions(model), Sessions(model, tmp_path / "s.db", most_in_memory=2)
    whole.open("a")
    right = read(whole, "a", rows)
    for name in "abc":
        cut.open(name)
    scores = []
    for first, last in ((0, 3), (3, 4), (4, 5), (5, 17), (17, 40)):
        for other in "bc":
            read(cut, other, series(3, seed=first))
        found = read(cut, "a", rows[first:last])
        scores.append(found["score"])
        if last == 17:
            cut.restore("b", cut.state("a"))
            cut.close("a")
            cut.restore("a", cut.state("b"))
    assert np.concatenate(scores).tobytes() == right["score"].tobytes()
    assert found["forecast"].tobytes() == right["forecast"].tobytes()
    assert cut.state("a").tobytes() == whole.state("a").tobytes()
    cut.disk.shut()


def test_nan_stays_in_its_session_and_ends_with_its_window(model):
    sessions = Sessions(model)
    for name in "ab":
        sessions.open(name)
    spoilt = series(20)
    spoilt[8, 1] = np.nan
    results = sessions.push([Push("a", {"series": spoilt}), Push("b", {"series": series(20)})])
    assert np.isfinite(results[1]["forecast"]).all()
    assert np.isfinite(results[1]["score"][WINDOW:]).all()
    assert np.isfinite(results[0]["forecast"]).all()
    np.testing.assert_array_equal(results[0]["forecast"], results[1]["forecast"])
    # The row itself, and the rows whose forecast window contains it.
    lost = np.isnan(results[0]["score"])
    assert lost.nonzero()[0].tolist() == [*range(WINDOW), *range(8, 8 + WINDOW + 1)]


def test_wrong_rows_are_refused_and_change_nothing(model):
    sessions = Sessions(model)
    sessions.open("a")
    before = sessions.state("a")
    for rows in (draw(2, 3), np.zeros((0, 2)), np.array([["a", "b"]])):
        with pytest.raises(DataError):
            read(sessions, "a", rows)
    np.testing.assert_array_equal(sessions.state("a"), before)
