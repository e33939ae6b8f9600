import dataclasses

import numpy as np
import pytest

from cellerate.data.arrays.gather import BlockPlan, FilePlan, WindowIndex, open_rows, windows_at
from cellerate.data.series.series import SeriesData, open_series
from cellerate.data.settings import Reading
from cellerate.data.times.calendar_features import Calendar, make_calendar
from cellerate.data.times.form import TimeForm
from cellerate.data.times.frequency import parse_frequency
from cellerate.data.windows.covariate_batches import CovariateBatches
from cellerate.data.windows.covariates import Covariates, Framing
from cellerate.data.windows.scaler import Scaler
from cellerate.data.windows.series_scaler import SeriesScaler
from cellerate.data.windows.shares import share_of
from cellerate.data.windows.windows import WindowSettings
from cellerate.errors import ModelError
from cellerate.runtime.forecast.origins import forecast_at
from cellerate.runtime.forecast.settings import ForecastSettings

WINDOW, HORIZON, ROWS = 5, 3, 40
CALENDAR = Calendar(("hour", "weekday"))


@pytest.fixture(scope="module")
def data():
    """Two series of hours, y and a price; the second is a hundred times as large."""
    values = np.random.default_rng(0).normal(3, 1, (2 * ROWS, 2)).astype(np.float32)
    values[ROWS:] *= 100
    hours = np.datetime64("2024-02-26T00", "us") + np.arange(ROWS) * np.timedelta64(1, "h")
    times = np.concatenate([hours, hours + np.timedelta64(7, "h")])
    segments = ((0, ROWS, "north"), (ROWS, 2 * ROWS, "south"))
    return SeriesData(values, ("y", "price"), (0, 1), (0,), times, segments, np.timedelta64(1, "h"), "f")


def everything(data):
    usual = Scaler.fit(data.whole())
    scaling = SeriesScaler.fit(data.whole(), usual)
    return usual, Covariates(("price",), CALENDAR, ("north", "south"), scaling)


def batches(data, covariates, scaler, **settings):
    chosen = {"window": WINDOW, "horizon": HORIZON, "batch_size": 8, "seed": 4} | settings
    return CovariateBatches(data.whole(), WindowSettings(**chosen), scaler, covariates)


def test_batches_hold_what_belongs_to_each_window(data):
    scaler, covariates = everything(data)
    source = batches(data, covariates, scaler)
    values = data.values.astype(np.float64)
    seen = set()
    for index in range(len(source)):
        x, y = source.batch(1, index)
        for row, origin in enumerate(source.origins(1, index).tolist()):
            own = int(origin > ROWS)
            rows = values[own * ROWS : (own + 1) * ROWS]
            scaled = (values - rows.mean(axis=0)) / rows.std(axis=0)
            past, after = slice(origin - WINDOW, origin), slice(origin, origin + HORIZON)
            np.testing.assert_allclose(x["series"][row, :, :2], scaled[past], atol=1e-5)
            np.testing.assert_array_equal(x["series"][row, :, 2:], CALENDAR.features(data.times[past]))
            np.testing.assert_allclose(x["future"][row, :, :1], scaled[after, 1:], atol=1e-5)
            np.testing.assert_array_equal(x["future"][row, :, 1:], CALENDAR.features(data.times[after]))
            np.testing.assert_allclose(y[row], scaled[after, :1], atol=1e-5)
            assert x["series_id"][row, 0] in (0, own + 1)
            seen.add(origin)
    assert len(seen) == 8 * len(source)


def test_few_ids_are_dropped_the_same_ones_each_time(data):
    scaler, covariates = everything(data)
    found = [
        np.concatenate([x["series_id"] for x, _ in batches(data, covariates, scaler).batches(e)])
        for e in range(40)
    ]
    again = np.concatenate([x["series_id"] for x, _ in batches(data, covariates, scaler).batches(3)])
    assert np.array_equal(found[3], again)
    share = float((np.concatenate(found) == 0).mean())
    assert 0.02 < share < 0.04
    judged = batches(data, covariates, scaler, seed=None, drop_last=False)
    assert all((x["series_id"] > 0).all() for x, _, _ in judged.batches(0))


def test_shares_of_processes_are_the_whole_batch(data):
    scaler, covariates = everything(data)
    x, y = batches(data, covariates, scaler).batch(2, 3)
    shares = [share_of(batches(data, covariates, scaler), number, 2).batch(2, 3) for number in range(2)]
    for name, part in x.items():
        assert np.array_equal(np.concatenate([share[0][name] for share in shares]), part), name
    assert np.array_equal(np.concatenate([share[1] for share in shares]), y)


def test_scale_alone_needs_no_second_input(data):
    usual, covariates = everything(data)
    only = Covariates(scaling=covariates.scaling)
    x, y = batches(data, only, usual).batch(0, 0)
    assert x.shape == (8, WINDOW, 2)
    assert y.shape == (8, HORIZON, 1)


def test_fingerprint_tells_covariates_apart(data):
    usual, covariates = everything(data)
    prints = {
        batches(data, one, usual).fingerprint()
        for one in (covariates, dataclasses.replace(covariates, calendar=None), Covariates(("price",)))
    }
    assert len(prints) == 3


@pytest.mark.parametrize("kind", ["file", "blocks"])
def test_windows_of_a_file_are_where_they_say(tmp_path, kind):
    np.save(tmp_path / "v.npy", np.arange(3000, dtype=np.float32).reshape(-1, 1))
    rows = open_rows(np.load(tmp_path / "v.npy", mmap_mode="r"))
    index = WindowIndex(np.array([[5, 900], [1000, 2990]]), 7, 3)
    plan = FilePlan(rows, index) if kind == "file" else BlockPlan(rows, index, 1, 4096)
    first, last = 100, 800
    read = [values[starts, 0] for values, starts in plan.locate(2, first, last)]
    # Each row of the file holds its own number.
    assert np.array_equal(np.concatenate(read), plan.where(2, first, last))


def test_windows_of_a_large_file_are_those_of_its_array(tmp_path, monkeypatch):
    monkeypatch.setattr("cellerate.data.arrays.gather.EXACT_BYTES", 100)
    values = np.arange(600, dtype=np.float32).reshape(-1, 2)
    np.save(tmp_path / "v.npy", values)
    mapped = np.load(tmp_path / "v.npy", mmap_mode="r")
    for starts in (np.array([200, 203, 201]), np.array([290, 0])):
        expected = values[starts[:, None] + np.arange(7)]
        assert np.array_equal(windows_at(mapped, starts, 7), expected)
        with monkeypatch.context() as patched:
            # Far apart, they are not read in one piece.
            patched.setattr("cellerate.data.arrays.gather.MIXING_BYTES", 1)
            assert np.array_equal(windows_at(mapped, starts, 7), expected)


def test_description_gives_the_same_covariates_and_damage_raises(data):
    scaler, covariates = everything(data)
    config = covariates.to_config()
    assert Covariates.from_config(config, scaler).to_config() == config
    assert Covariates.from_config(None, scaler).plain
    for damage in ({"future": ["wind"]}, {"future": "price"}, {"series": ["a", "a"]}, {"series": [1]}):
        with pytest.raises(ModelError, match="file is damaged"):
            Covariates.from_config(config | damage, scaler)
    with pytest.raises(ModelError, match="mapping"):
        Covariates.from_config([], scaler)


def test_names_of_all_series_are_looked_through_once():
    class Counted(tuple):
        passes = 0

        def __iter__(self):
            Counted.passes += 1
            return super().__iter__()

    covariates = Covariates(series=Counted("abc"))
    for _ in range(3):
        assert covariates.ids(["c", "x", "a"]).tolist() == [3, 0, 1]
    assert Counted.passes == 1


def test_ids_of_series_are_known_in_the_spelling_of_other_tables():
    assert Covariates(series=("1.0", "True")).ids(["true", "1", "2"]).tolist() == [2, 1, 0]


# In Berlin the clock goes from 2:00 to 3:00 on 31 March 2024, at 1:00 UTC, a Sunday, and back on 27 October.
@pytest.mark.parametrize(("change", "before", "after"), [("2024-03-31T01", 1, 2), ("2024-10-27T01", 2, 1)])
def test_calendar_of_zoned_times_is_that_of_the_clock_on_the_wall(data, monkeypatch, change, before, after):
    utc = np.datetime64(change, "us") + np.arange(-30, 30) * np.timedelta64(1, "h")
    local = utc + np.where(utc < np.datetime64(change), before, after) * np.timedelta64(1, "h")
    hours = 2 * np.pi * (local - local.astype("M8[D]")) / np.timedelta64(1, "D")
    days = 2 * np.pi * ((local.astype("M8[D]").astype(int) + 3) % 7) / 7
    wanted = np.stack([np.sin(hours), np.cos(hours), np.sin(days), np.cos(days)], axis=-1)
    zoned = dataclasses.replace(
        data,
        values=data.values[:ROWS],
        times=utc[:ROWS],
        segments=((0, ROWS, ""),),
        form=TimeForm(zone="Europe/Berlin"),
        frequency=parse_frequency("hour"),
    )
    scaler = Scaler.fit(zoned.whole())
    covariates = Covariates(calendar=CALENDAR)
    for prepared in (True, False):
        if not prepared:
            monkeypatch.setattr("cellerate.data.windows.covariates._PREPARED_BYTES", 0)
        source = batches(zoned, covariates, scaler, drop_last=False)
        for index in range(len(source)):
            x = source.batch(0, index)[0]
            for row, origin in enumerate(source.origins(0, index).tolist()):
                np.testing.assert_allclose(
                    x["series"][row, :, 2:], wanted[origin - WINDOW : origin], atol=1e-6
                )
                np.testing.assert_allclose(x["future"][row], wanted[origin : origin + HORIZON], atol=1e-6)
    seen = []
    settings = ForecastSettings(Reading(), WINDOW, HORIZON, (), scaler, covariates)

    def predict(inputs):
        seen.append(inputs)
        return np.zeros((len(inputs["series"]), HORIZON, 1), np.float32)

    # At the change, and behind the last row.
    origins = np.array([28, ROWS])
    forecast_at(predict, zoned, settings, origins)
    for row, origin in enumerate(origins.tolist()):
        np.testing.assert_allclose(seen[0]["series"][row, :, 2:], wanted[origin - WINDOW : origin], atol=1e-6)
        np.testing.assert_allclose(seen[0]["future"][row], wanted[origin : origin + HORIZON], atol=1e-6)


def test_calendar_of_business_days_with_changing_offsets_has_no_weekends(tmp_path):
    days = np.busday_offset("2023-01-02", np.arange(300)).astype("datetime64[us]")
    offsets = [
        "-04:00" if "2023-03-12" < day < "2023-11-05" else "-05:00"
        for day in days.astype("M8[D]").astype(str)
    ]
    lines = [
        f"{day}{offset},{n}"
        for n, (day, offset) in enumerate(zip(days.astype("M8[s]"), offsets, strict=True))
    ]
    (tmp_path / "t.csv").write_text("\n".join(["date,y", *lines]))
    data = open_series(tmp_path / "t.csv", Reading(targets=["y"]))
    framing = Framing(data, Scaler.fit(data.whole()), Covariates(calendar=Calendar(("weekday",))))
    past, origins = np.asarray(data.values)[None], np.array([300])
    found = framing.inputs(past, origins, framing.units(past, origins), None, data.times[None, :2])["series"][
        0, :, 1:
    ]
    angles = 2 * np.pi * (np.arange(300) % 5) / 7
    np.testing.assert_allclose(found, np.stack([np.sin(angles), np.cos(angles)], axis=-1), atol=1e-6)


def test_holidays_begin_with_the_year_on_the_wall():
    pytest.importorskip("holidays")
    # 21:00 on New Year's Eve in New York.
    times = np.array(["2024-01-01T02:00"], "M8[us]")
    calendar = make_calendar(["holiday"], "US", times, "America/New_York")
    assert calendar.features(times - np.timedelta64(5, "h")).tolist() == [[0.0]]
