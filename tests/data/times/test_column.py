from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest

from cellerate.data.times.column import TimeParser
from cellerate.errors import ConfigError, DataError

PATH = Path("f.csv")


def parsed(values, **options):
    parser = TimeParser(PATH, "date", **options)
    return parser.parse(pa.array(values), 0), parser.form


def days(*texts):
    return np.array(texts, "datetime64[us]")


@pytest.mark.parametrize(
    ("texts", "first", "words"),
    [
        (["2020-01-31 23:00:00", "2020-02-01 00:00:00"], "2020-01-31T23:00", ""),
        (["2020-01-31T23:00", "2020-02-01T00:00"], "2020-01-31T23:00", ""),
        (["2020-01-01 05", "2020-01-01 06"], "2020-01-01T05:00", ""),
        (["2020/1/5 3:00", "2020/1/15 13:00"], "2020-01-05T03:00", ""),
        (["2020-01-01 00:00:00.123", "2020-01-01 00:00:01.123"], "2020-01-01T00:00:00.123", ""),
        (["13/01/2020", "14/01/2020"], "2020-01-13", "dates day first"),
        (["01.02.20", "02.02.20"], "2020-02-01", "dates day first"),
        (["1-2-2020", "13-2-2020"], "2020-02-01", "dates day first"),
        (["1/13/2020 5:00 PM", "1/14/2020 12:00 AM"], "2020-01-13T17:00", "dates month first"),
        (["03-Mar-2020", "04-Mar-2020"], "2020-03-03", "months by name"),
        (["January 5, 2020", "February 15, 2020"], "2020-01-05", "months by name"),
        (["Jan 2020", "May 2020"], "2020-01-01", "months by name"),
        (["Jan-20", "Feb-20"], "2020-01-01", "months by name"),
        (["2020-01", "2020-02"], "2020-01-01", "months"),
        (["01/2020", "02/2020"], "2020-01-01", "months"),
        (["2020Q2", "2020Q3"], "2020-04-01", "quarters"),
        (["Q2 2020", "Q3 2020"], "2020-04-01", "quarters"),
        (["2020-W53", "2021-W01"], "2020-12-28", "ISO weeks"),
        (["2020-W05-2", "2020-W06-2"], "2020-01-28", "ISO weeks"),
        (["2023-10-25T22:00:00Z", "2023-10-25T23:00:00Z"], "2023-10-25T22:00", "times in UTC"),
        (["2023-10-25 23:00:00+02:00", "2023-10-26 00:00:00+02:00"], "2023-10-25T21:00", "times in +02:00"),
        (["25/10/2023 23:00 -0330", "26/10/2023 00:00 -0330"], "2023-10-26T02:30", "dates day first, times in -03:30"),
        (["20200101 1300", "20200101 1400"], "2020-01-01T13:00", ""),
    ],
)  # fmt: skip
def test_texts_are_read_and_written_back_as_they_were(texts, first, words):
    times, form = parsed(texts)
    assert times[0] == np.datetime64(first)
    assert (form.words, form.write(times)) == (words, texts)


@pytest.mark.parametrize(
    ("numbers", "first", "words"),
    [
        ([20200130, 20200131, 20200201, 20200202], "2020-01-30", "dates as yyyymmdd"),
        ([20200101, 20200201, 20200301], "2020-01-01", "dates as yyyymmdd"),
        ([202011, 202012, 202101], "2020-11-01", "dates as yyyymm"),
        ([2020010122, 2020010123, 2020010200], "2020-01-01T22:00", "dates as yyyymmddHH"),
        ([1577836800, 1577840400], "2020-01-01", "times as epoch seconds, UTC"),
        ([1577836800000, 1577840400000], "2020-01-01", "times as epoch milliseconds, UTC"),
        ([1577836800 * 10**6, 1577840400 * 10**6], "2020-01-01", "times as epoch microseconds, UTC"),
        ([1577836800 * 10**9, 1577840400 * 10**9], "2020-01-01", "times as epoch nanoseconds, UTC"),
        ([1577836800.5, 1577840400.5], "2020-01-01T00:00:00.5", "times as epoch seconds, UTC"),
    ],
)
@pytest.mark.parametrize("as_texts", [False, True])
def test_dates_and_epochs_as_numbers_are_read_and_written_back(numbers, first, words, as_texts):
    times, form = parsed([repr(number) for number in numbers] if as_texts else numbers)
    assert times[0] == np.datetime64(first)
    assert (form.words, form.write(times)) == (words, numbers)


@pytest.mark.parametrize("numbers", [[1, 2, 3], [0.5, 1.0], [2019, 2020], [20200130, 20200131, 20200132]])
def test_numbers_that_are_no_dates_stay_numbers(numbers):
    times, form = parsed(numbers)
    assert times.tolist() == numbers
    assert (form.kind, form.write(times)) == ("number", numbers)


@pytest.mark.parametrize(("first", "second"), [("s", "ms"), ("ms", "s"), ("us", "ms"), ("ms", "ns")])
@pytest.mark.parametrize("blocks", [1, 2])
def test_epochs_that_change_their_unit_are_refused_with_the_row(first, second, blocks):
    per = {"s": 1, "ms": 10**3, "us": 10**6, "ns": 10**9}
    before = [(1_600_000_000 + hour * 3600) * per[first] for hour in range(3)]
    after = [(1_600_000_000 + hour * 3600) * per[second] for hour in range(3, 6)]
    parser = TimeParser(PATH, "date")
    with pytest.raises(
        DataError, match=f"changes its unit: {after[0]} in data row 4 is in .*Write all times in one"
    ):
        if blocks == 1:
            parser.parse(pa.array(before + after), 0)
        else:
            parser.parse(pa.array(before), 0)
            parser.parse(pa.array(after), 3)


def test_epochs_in_milliseconds_may_go_back_to_1970_step_by_step():
    days = np.arange(0, 20_000 * 86_400_000, 86_400_000)[::-1].copy()
    parser = TimeParser(PATH, "date")
    times = np.concatenate([parser.parse(pa.array(part), 0) for part in np.split(days, 4)])
    assert (str(times[0])[:10], str(times[-1])[:10]) == ("2024-10-03", "1970-01-01")


def test_dates_as_numbers_may_have_gaps():
    times, form = parsed([20200130, 20200131, 20200203, 20200204, 20200206, 20200207])
    assert form.words == "dates as yyyymmdd"
    assert times[-1] == np.datetime64("2020-02-07")


def test_date_as_number_that_is_none_after_the_first_block_is_named():
    parser = TimeParser(PATH, "date")
    parser.parse(pa.array([20200101, 20200102]), 0)
    with pytest.raises(DataError, match="holds 20200132 in data row 3"):
        parser.parse(pa.array([20200132]), 2)


@pytest.mark.parametrize("as_zone", [None, "UTC", "Europe/Berlin"])
def test_stamps_of_arrow_keep_their_zone(as_zone):
    stamps = pa.array(days("2023-10-25T21:00")).cast(pa.timestamp("us", as_zone))
    times, form = parsed(stamps)
    written = {None: "2023-10-25 21:00:00", "UTC": "2023-10-25 21:00:00+00:00"}
    assert times[0] == np.datetime64("2023-10-25T21:00")
    assert form.write(times) == [written.get(as_zone, "2023-10-25 23:00:00+02:00")]
    assert (
        form.column(times).dtype == times.dtype if as_zone is None else form.column(times).type.tz == as_zone
    )


def test_dates_of_arrow_are_written_as_dates():
    times, form = parsed(pa.array(days("2023-10-25").astype("datetime64[D]")))
    assert form.write(times) == ["2023-10-25"]
    assert form.column(times).dtype == np.dtype("datetime64[D]")


def test_offset_of_the_latest_time_is_the_one_to_write_with():
    times, form = parsed(
        ["2023-10-29 01:00:00+02:00", "2023-10-29 04:00:00+01:00", "2023-10-28 04:00:00+02:00"]
    )
    assert (form.zone, form.mixed) == ("+01:00", True)
    assert form.write(times[:1]) == ["2023-10-29 00:00:00+01:00"]


def test_pattern_that_would_lose_a_part_of_a_time_gives_way():
    _, form = parsed(["2020-01-01", "2020-01-02"])
    assert form.write(days("2020-01-03T12:00")) == ["2020-01-03 12:00:00"]


def test_order_of_day_and_month_is_that_of_the_first_value_above_twelve():
    parser = TimeParser(PATH, "date")
    parser.parse(pa.array(["01/02/2020", "02/02/2020"]), 0)
    assert parser.form.order == "?"
    times = parser.parse(pa.array(["02/13/2020", "03/01/2020"]), 2)
    assert parser.form.order == "mdy"
    assert times[1] == np.datetime64("2020-03-01")
    assert parser.form.write(times) == ["02/13/2020", "03/01/2020"]


def test_block_that_contradicts_the_order_names_both_values():
    parser = TimeParser(PATH, "date")
    parser.parse(pa.array(["25/01/2020"]), 0)
    with pytest.raises(
        DataError, match=r"'01/25/2020' in data row 8, but the day first in '25/01/2020' in data row 1"
    ):
        parser.parse(pa.array(["02/01/2020", "01/25/2020"]), 6)


def test_named_order_is_kept_and_a_value_against_it_named():
    times, _ = parsed(["01/02/2020"], date_order="mdy")
    assert times[0] == np.datetime64("2020-01-02")
    assert parsed(["20-01-03"], date_order="ymd")[0][0] == np.datetime64("2020-01-03")
    with pytest.raises(DataError, match=r"'25/01/2020' in data row 2.*is not a date with the month first"):
        parsed(["01/02/2020", "25/01/2020"], date_order="mdy")
    with pytest.raises(ConfigError, match="date_order must be one of"):
        TimeParser(PATH, "date", date_order="dym")


@pytest.mark.parametrize(
    ("texts", "bad"),
    [
        (["hello", "2020-01-01"], "'hello' in data row 1"),
        (["2020-01-01", "hello"], "'hello' in data row 2"),
        (["2020-02-29", "2020-02-30"], "'2020-02-30' in data row 2"),
        (["2020-02-29 23:59", "2020-02-29 24:01"], "'2020-02-29 24:01' in data row 2"),
        (["2020-W53", "2021-W53"], "'2021-W53' in data row 2"),
        (["Jan 2020", "Foo 2020"], "'Foo 2020' in data row 2"),
        (["1/13/2020 5:00 PM", "1/14/2020 15:00 PM"], "'1/14/2020 15:00 PM' in data row 2"),
        (["2020-01-01 00:00", "2020-01-01 01:00+02:00"], r"'2020-01-01 01:00\\+02:00' in data row 2"),
    ],
)
def test_value_that_is_no_time_is_named(texts, bad):
    with pytest.raises(DataError, match=bad.replace("\\\\", "\\")):
        parsed(texts)


@pytest.mark.parametrize(
    ("first", "later", "bad"),
    [
        ([1.0, 2.0], [3.0, np.nan], "nan in data row 4"),
        ([1.6e9, 1.7e9], [1.8e9, np.nan], "nan in data row 4"),
        ([1.0, np.inf], [], "inf in data row 2"),
        # Seconds, and then nanoseconds: those times would not fit into 64 bits.
        (
            [1_600_000_000, 1_600_000_060],
            [1_600_000_120, 1_600_000_180 * 10**9],
            "1600000180000000000 in data row 4",
        ),
    ],
)
def test_number_that_is_no_time_is_named(first, later, bad):
    parser = TimeParser(PATH, "date")
    if later:
        parser.parse(pa.array(first), 0)
    with pytest.raises(DataError, match=bad):
        parser.parse(pa.array(later or first), 2 if later else 0)


@pytest.mark.parametrize(
    ("values", "words"),
    [
        (pa.array([1, 2], pa.time32("s")), r"values of type time32\[s\]; expected dates"),
        (pa.array([1, 2], pa.duration("s")), r"values of type duration\[s\]; expected dates"),
        (
            pa.array([1, 2], pa.timestamp("s", "Mars/Base")),
            "the time zone 'Mars/Base', which is not known here",
        ),
        # In microseconds this second would wrap around.
        (
            pa.array([0, 10**14], pa.timestamp("s")),
            "has the year 3170843 in data row 9, which is too far away",
        ),
    ],
    ids=["times of day", "durations", "unknown zone", "far away"],
)
def test_values_of_time_types_that_are_no_times_are_refused(values, words):
    with pytest.raises(DataError, match=words):
        TimeParser(PATH, "date").parse(values, 7)


def test_parts_of_microseconds_are_dropped():
    values = pa.array([1_500], pa.timestamp("ns"))
    assert TimeParser(PATH, "date").parse(values, 0)[0] == np.datetime64(1, "us")
