"""Rows in the order of time, rows of one time, and clock changes, through `open_series`."""

import datetime
import zoneinfo

import numpy as np
import pytest

from cellerate.data.series import build as series_build, order as series_order
from cellerate.data.series.order import Sorting, order_rows
from cellerate.data.series.series import SeriesData, open_series
from cellerate.data.settings import Reading
from cellerate.data.times.form import TimeForm
from cellerate.data.times.frequency import parse_frequency
from cellerate.errors import ConfigError, DataError

BERLIN = zoneinfo.ZoneInfo("Europe/Berlin")


@pytest.fixture
def opened(tmp_path):
    """Opens lines of a CSV whose columns are `head`."""

    def opener(lines, head="date,a", **options):
        path = tmp_path / "t.csv"
        path.write_text("\n".join([head, *lines]) + "\n")
        return open_series(path, Reading(targets=["a"], **options))

    return opener


def days(count, start="2020-01-01"):
    return np.datetime64(start, "D") + np.arange(count)


def clock(hours, step_minutes=60, start="2023-10-28T20:00"):
    """What a clock in Berlin shows, from 20:00 UTC on the day before it is put back."""
    instants = np.datetime64(start, "m") + np.arange(0, hours * 60, step_minutes)
    return [
        datetime.datetime.fromtimestamp(int(t.astype("datetime64[s]").astype(int)), BERLIN) for t in instants
    ]


def test_descending_rows_are_sorted_and_counted(opened):
    data = opened([f"{day},{n}" for n, day in enumerate(days(9))][::-1])
    assert data.values[:, 0].tolist() == list(range(9))
    assert data.times.astype("datetime64[D]").tolist() == days(9).tolist()
    assert (data.segments, data.notes) == (((0, 9, ""),), ("sorted 8 rows by time",))


def test_rows_in_order_are_left_and_nothing_is_told(opened):
    assert opened([f"{day},1" for day in days(3)]).notes == ()


@pytest.mark.parametrize("together", [1, 3, 1 << 20])
def test_mixed_rows_of_several_series_are_sorted_within_each(opened, monkeypatch, together):
    monkeypatch.setattr(series_order, "_TOGETHER", together)
    monkeypatch.setattr(series_order, "_WRITTEN", 4)
    rows = [(s, i, day) for s in "xyz" for i, day in enumerate(days(7))]
    order = np.random.default_rng(0).permutation(len(rows))
    value = {s: 100 * k for k, s in enumerate("xyz")}
    data = opened(
        [f"{s},{day},{value[s] + i}" for s, i, day in (rows[n] for n in order)],
        "id,date,a",
        series_column="id",
    )
    for first, stop, name in data.segments:
        assert data.values[first:stop, 0].tolist() == [value[name] + i for i in range(7)]
        assert data.times[first:stop].astype("datetime64[D]").tolist() == days(7).tolist()


def test_gap_of_sorted_rows_names_the_row_of_the_file(opened):
    lines = [f"{day},{n}" for n, day in enumerate(np.delete(days(9), 4))][::-1]
    with pytest.raises(
        DataError, match=r"data row 4: the time goes from 2020-01-04 to 2020-01-06.*frequency is days"
    ):
        opened(lines, gaps="error")


def test_rows_of_one_time_are_refused_with_both_rows(opened):
    lines = ["2020-01-01,1", "2020-01-02,2", "2020-01-03,3", "2020-01-02,5"]
    with pytest.raises(DataError) as caught:
        opened(lines)
    said = str(caught.value)
    assert "data row 4: the time 2020-01-02 occurs twice; it is also in" in said
    assert "data row 2 (a 2 there, a 5 here; 1 such row in all)" in said
    assert "duplicates='first', 'last' or 'mean'" in said and "series_column" in said


@pytest.mark.parametrize(
    ("duplicates", "kept"), [("first", [1, 2, 3]), ("last", [1, 7, 3]), ("mean", [1, 4, 3])]
)
@pytest.mark.parametrize("written", [1, 1 << 14])
def test_rows_of_one_time_are_merged_as_named(opened, monkeypatch, duplicates, kept, written):
    monkeypatch.setattr(series_order, "_WRITTEN", written)
    lines = ["2020-01-03,3", "2020-01-02,2", "2020-01-01,1", "2020-01-02,3", "2020-01-02,7"]
    data = opened(lines, duplicates=duplicates)
    assert data.values[:, 0].tolist() == kept
    assert data.segments == ((0, 3, ""),)
    assert data.notes[-1] == "merged 2 rows with others of the same series and time"


def test_mean_of_rows_of_one_time_leaves_out_missing_values(opened):
    lines = ["2020-01-01,1", "2020-01-02,", "2020-01-02,4", "2020-01-03,3"]
    assert opened(lines, duplicates="mean", missing="drop").values[:, 0].tolist() == [1, 4, 3]


def test_hour_that_a_clock_shows_twice_is_refused_with_its_zone(opened):
    lines = [f"{time:%Y-%m-%d %H:%M},{n}" for n, time in enumerate(clock(10))]
    with pytest.raises(
        DataError, match=r"2023-10-29 02:00 occurs twice.*time_zone='Europe/Berlin'.*duplicates="
    ):
        opened(lines)
    assert opened(lines, duplicates="first").segments == ((0, 9, ""),)


@pytest.mark.parametrize("step", [60, 15])
@pytest.mark.parametrize("backwards", [False, True])
def test_local_times_in_a_named_zone_are_instants(opened, step, backwards):
    shown = clock(10, step)
    lines = [f"{time:%d.%m.%Y %H:%M},{n}" for n, time in enumerate(shown)]
    data = opened(lines[::-1] if backwards else lines, time_zone="Europe/Berlin")
    assert data.values[:, 0].tolist() == list(range(len(shown)))
    assert data.segments == ((0, len(shown), ""),)
    assert data.times[0] == np.datetime64("2023-10-28T20:00")
    assert data.form.write(data.times) == [f"{time:%d.%m.%Y %H:%M}" for time in shown]
    assert data.form.write(data.times_after(len(shown), 1)) == [f"29.10.2023 {'07:00'}"]


def test_two_series_each_have_their_repeated_hour(opened):
    lines = [f"{s},{time:%Y-%m-%d %H:%M},{n}" for n, time in enumerate(clock(10)) for s in "xy"]
    data = opened(lines, "id,date,a", series_column="id", time_zone="Europe/Berlin")
    assert data.segments == ((0, 10, "x"), (10, 20, "y"))


@pytest.mark.parametrize("together", [1 << 20, 1])
def test_each_series_has_its_own_order_around_a_repeated_hour(opened, monkeypatch, together):
    monkeypatch.setattr("cellerate.data.series.order._TOGETHER", together)
    lines = [f"{time:%Y-%m-%d %H:%M},{n}" for n, time in enumerate(clock(10, 15))]
    both = [*(f"x,{line}" for line in lines), *(f"y,{line}" for line in lines[:0:-1])]
    data = opened(both, "id,date,a", series_column="id", time_zone="Europe/Berlin")
    assert data.values[:, 0].tolist() == [*range(len(lines)), *range(1, len(lines))]
    assert data.segments == ((0, len(lines), "x"), (len(lines), 2 * len(lines) - 1, "y"))


def test_repeated_hour_of_rows_in_no_order_is_refused(opened):
    lines = [f"{time:%Y-%m-%d %H:%M},{n}" for n, time in enumerate(clock(10, 15))]
    later_first = lines[30:] + lines[:30]
    data = opened(later_first, time_zone="Europe/Berlin")
    assert data.values[:, 0].tolist() == list(range(len(lines)))
    shuffled = np.random.default_rng(0).permutation(lines).tolist()
    with pytest.raises(
        DataError, match=r"showed 2023-10-29 02:\d\d twice.*in no order of time: sort the file"
    ):
        opened(shuffled, time_zone="Europe/Berlin")
    once = [line for line in shuffled if " 02:" not in line]
    assert opened(once, time_zone="Europe/Berlin").values[:, 0].tolist() == sorted(
        int(x.split(",")[1]) for x in once
    )
    few = [f"2023-10-29 {time},{n}" for n, time in enumerate(("02:30", "02:00", "02:30"))]
    assert len(opened(few, time_zone="Europe/Berlin", gaps="ignore").values) == 3


def test_time_that_the_clock_leaves_out_is_refused(opened):
    lines = [f"2023-03-26 0{hour}:00,{hour}" for hour in range(5)]
    with pytest.raises(
        DataError, match="data row 3: the clock of time_zone='Europe/Berlin' never showed 2023-03-26 02"
    ):
        opened(lines, time_zone="Europe/Berlin")


def test_hour_that_another_zone_shows_twice_is_named(opened):
    lines = [f"{time:%Y-%m-%d %H:%M},{n}" for n, time in enumerate(clock(10))]
    with pytest.raises(DataError, match=r"2023-10-29 02:00 occurs twice.*time_zone='Europe/Berlin'"):
        opened(lines, time_zone="America/New_York")


@pytest.mark.parametrize("zone", [None, "Europe/Berlin"])
@pytest.mark.parametrize(
    ("dates", "following"),
    [(("0001-01-01", "0001-01-02"), "0001-01-03"), (("9999-12-30", "9999-12-31"), "10000-01-01 ")],
)
def test_years_at_the_ends_of_the_calendar_are_read_and_written(opened, dates, following, zone):
    data = opened([f"{date},1" for date in dates], time_zone=zone)
    assert data.form.write(data.times_after(2, 1))[0].startswith(following)


def test_zone_of_plain_numbers_is_refused(opened):
    with pytest.raises(ConfigError, match=r"time_zone is 'UTC'.*plain numbers"):
        opened(["1,1", "2,2"], time_zone="UTC")


def test_offsets_are_written_in_the_zone_that_is_named(opened):
    lines = [f"{time},{n}" for n, time in enumerate(clock(10))]
    data = opened(lines, time_zone="Europe/Berlin")
    assert data.form.write(data.times) == [str(time) for time in clock(10)]
    kept = opened(lines)
    assert kept.form.write(kept.times_after(10, 1)) == ["2023-10-29 07:00:00+01:00"]
    assert "changing offsets" in kept.notes[0]


def test_series_that_ends_with_an_offset_goes_on_an_hour_later_with_it(opened):
    lines = [f"2023-10-25 {hour:02}:00:00+02:00,{hour}" for hour in range(20, 24)]
    data = opened(lines)
    assert data.form.write(data.times_after(4, 2)) == [
        "2023-10-26 00:00:00+02:00",
        "2023-10-26 01:00:00+02:00",
    ]


def test_dates_that_only_one_order_makes_regular_are_read_so_and_it_is_told(opened):
    hours = [
        f"0{month}/0{day}/2020 {hour:02}:00" for month, day in [(1, 1), (1, 2), (1, 3)] for hour in range(24)
    ]
    data = opened([f"{time},{n}" for n, time in enumerate(hours)])
    assert data.segments == ((0, 72, ""),)
    assert data.times[-1] == np.datetime64("2020-01-03T23:00")
    assert data.notes == ("dates month first, because only then the steps are regular (hours)",)
    assert data.form.write(data.times[-1:]) == ["01/03/2020 23:00"]


def test_dates_of_either_order_are_refused_with_both_readings(opened):
    with pytest.raises(
        DataError, match=r"2020-02-01 \(day first, days\) or 2020-01-02 \(month first, months\).*date_order"
    ):
        opened(["01/02/2020,1", "02/02/2020,2", "03/02/2020,3"])


@pytest.mark.parametrize("swapped_rows", [1, 1 << 20])
def test_order_that_a_later_file_decides_holds_for_the_one_before(tmp_path, monkeypatch, swapped_rows):
    monkeypatch.setattr(series_build, "_SWAPPED_ROWS", swapped_rows)
    dates = [f"{day.month:02}/{day.day:02}/{day.year}" for day in days(40).tolist()]
    for number, (begin, end) in enumerate([(0, 9), (9, 20), (20, 40)]):
        lines = [f"{dates[n]},{n}" for n in range(begin, end)]
        (tmp_path / f"{number}.csv").write_text("\n".join(["date,a", *lines]) + "\n")
    data = open_series(tmp_path, Reading(targets=["a"]))
    assert data.times.astype("datetime64[D]").tolist() == days(40).tolist()
    assert data.segments == ((0, 40, ""),)


def test_files_that_contradict_each_other_in_the_order_are_refused(tmp_path):
    (tmp_path / "0.csv").write_text("date,a\n13/01/2020,1\n14/01/2020,1\n")
    (tmp_path / "1.csv").write_text("date,a\n01/15/2020,1\n01/16/2020,1\n")
    with pytest.raises(
        DataError, match="the month first in '01/15/2020' in data row 1, and the day first in '13/01"
    ):
        open_series(tmp_path, Reading(targets=["a"]))


@pytest.mark.parametrize("name", ["month", "ts", "Datum", "fecha", "when", "index", ""])
def test_time_column_of_another_name_is_found_and_told(opened, name):
    data = opened([f"{day.day}. Jan. 2020,{day.day}" for day in days(9).tolist()], f"{name},a")
    assert data.times is not None
    assert data.notes[0] == f"times from the column {name!r}"


@pytest.mark.parametrize("head", ["time,date,a", "time,day,a", "time,2,a"])
def test_dates_are_the_times_where_a_column_called_time_was_measured(opened, head):
    took = np.random.default_rng(0).permutation(20)
    data = opened(
        [f"{hours},{day},{n}" for n, (hours, day) in enumerate(zip(took, days(20), strict=True))], head
    )
    assert data.values[:, data.columns.index("a")].tolist() == list(range(20))
    assert data.times.astype("datetime64[D]").tolist() == days(20).tolist()


def test_numbers_in_a_column_called_time_are_the_times_where_none_are_dates(opened):
    data = opened([f"{n % 3},{n / 2},{n}" for n in range(20)], "t,time,a")
    assert data.times.tolist() == [n / 2 for n in range(20)]


def test_column_of_months_as_numbers_is_a_feature(opened):
    data = opened([f"{n % 12 + 1},{n}" for n in range(20)], "month,a")
    assert data.times is None and data.columns == ("month", "a")
    assert data.notes == ("no time column found: rows count as steps; name it with time_column",)


def test_first_column_of_words_is_no_time_column(opened):
    assert opened(["red,1", "blue,2"], "colour,a").times is None


def test_epochs_are_times_and_are_written_back(opened):
    data = opened([f"{1_577_836_800 + 3600 * n},{n}" for n in range(9)], "ts,a")
    assert data.frequency.name == "hours"
    assert data.form.write(data.times_after(9, 1)) == [1_577_836_800 + 9 * 3600]


def test_dates_as_numbers_have_as_many_rows_as_days(opened):
    data = opened([f"{str(day).replace('-', '')},{n}" for n, day in enumerate(days(115))])
    assert data.segments == ((0, 115, ""),)
    assert data.form.write(data.times_after(115, 1)) == [20200425]


def test_frequency_that_is_named_says_what_a_gap_is(opened):
    lines = [f"{day},{n}" for n, day in enumerate(days(30)) if np.is_busday(day)]
    assert len(opened(lines, frequency="day").segments) == 5
    assert len(opened(lines, frequency="business-day").segments) == 1


def test_several_columns_tell_series_apart(opened):
    lines = [f"{s},{i},{day},{n}" for s in "ab" for i in (1, 2) for n, day in enumerate(days(3))]
    data = opened(lines, "store,item,date,a", series_column=["store", "item"])
    assert [name for _, _, name in data.segments] == ["a / 1", "a / 2", "b / 1", "b / 2"]
    assert data.columns == ("a",)


def test_times_after_are_those_of_the_data_and_then_of_the_calendar(opened):
    data = opened([f"{month}-01,1" for month in np.arange("2019-01", "2020-01", dtype="datetime64[M]")])
    assert data.times_after(10, 4).astype("datetime64[D]").astype(str).tolist() == [
        "2019-11-01", "2019-12-01", "2020-01-01", "2020-02-01",
    ]  # fmt: skip


def test_order_of_plain_numbers_is_by_their_size(tmp_path):
    np.save(tmp_path / "values.npy", np.array([[1.0], [2.0], [3.0]], np.float32))
    np.save(tmp_path / "times.npy", np.array([2.5, 0.5, 1.5]))
    done = order_rows(tmp_path, [3], Sorting("error", "", TimeForm("number"), ["a"], str))
    assert (done.moved, done.merged, done.counts) == (3, 0, [3])
    assert np.load(tmp_path / "values.npy")[:, 0].tolist() == [2, 3, 1]
    assert np.load(tmp_path / "times.npy").tolist() == [0.5, 1.5, 2.5]


class Counted(tuple):
    """A tuple that counts how often all of it is looked through."""

    passes = 0

    def __iter__(self):
        type(self).passes += 1
        return super().__iter__()


def test_times_after_many_series_do_not_look_through_all_of_them_each_time(monkeypatch):
    monkeypatch.setattr(Counted, "passes", 0)
    ends = range(4, 404, 4)
    segments = Counted((stop - 4, stop, f"s{stop}") for stop in ends)
    times = np.tile(np.datetime64("2020-01-01", "us") + np.arange(4) * np.timedelta64(1, "D"), len(ends))
    values = np.zeros((len(times), 1), np.float32)
    data = SeriesData(
        values, ("y",), (0,), (0,), times, segments, None, "f", frequency=parse_frequency("day")
    )
    for stop in ends:
        assert data.times_after(stop, 2).astype("M8[D]").astype(str).tolist() == ["2020-01-05", "2020-01-06"]
    assert Counted.passes <= 1


def test_writing_many_times_looks_at_all_of_them_once(monkeypatch):
    calls, usable = [], TimeForm._usable
    monkeypatch.setattr(
        TimeForm, "_usable", lambda form, local: calls.append(len(local)) or usable(form, local)
    )
    times = np.datetime64("2020-01-01", "us") + np.arange(50) * np.timedelta64(1, "D")
    assert TimeForm("text", "%d.%m.%Y").write(times)[:2] == ["01.01.2020", "02.01.2020"]
    assert calls == [50]


@pytest.mark.parametrize(("frequency", "notes"), [(None, 1), ("14 days", 0)])
def test_rows_on_two_days_of_each_month_are_noted(opened, frequency, notes):
    rows = [f"2024-{month:02}-{day:02},1" for month in range(1, 7) for day in (1, 15)]
    found = opened(rows, frequency=frequency).notes
    assert len(found) == notes
    assert all("two rows a month, 14 to 17 days apart, count as a row every 14 days" in one for one in found)
