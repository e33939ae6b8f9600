import struct

import numpy as np
import pytest

from cellerate.errors import BackendError, ConfigError, OutputError
from cellerate.report.charts import check_chart, draw_forecasts
from cellerate.report.charts.canvas import shorten, spread, time_text
from support.report.charts import HOURS, example, shown

pytest.importorskip("matplotlib")


def png_size(path):
    content = path.read_bytes()
    assert content.startswith(b"\x89PNG\r\n\x1a\n")
    assert content.endswith(b"IEND\xaeB`\x82")
    return struct.unpack(">II", content[16:24])


def drawn(tmp_path, examples, title="title"):
    draw_forecasts(tmp_path / "chart.svg", examples, title)
    return shown(tmp_path / "chart.svg")


def test_chart_replaces_an_older_one_and_a_failure_leaves_it(tmp_path, monkeypatch):
    path = tmp_path / "chart.png"
    path.write_bytes(b"old")
    with monkeypatch.context() as patch:
        patch.setattr("os.fsync", full_disk)
        with pytest.raises(OutputError, match="disk is full"):
            draw_forecasts(path, [example()], "t")
    assert path.read_bytes() == b"old"
    assert [found.name for found in tmp_path.iterdir()] == ["chart.png"]
    draw_forecasts(path, [example()], "t")
    # Two panels a row, 130 dots an inch, each wider than high.
    width, height = png_size(path)
    assert width == 2 * 6.2 * 130
    assert height < width / 2


def full_disk(handle):
    raise OSError(28, "No space left on device")


def test_chart_that_cannot_be_written_is_refused_beforehand(tmp_path, monkeypatch):
    (tmp_path / "file").write_text("")
    with pytest.raises(OutputError, match="is a file"):
        check_chart(tmp_path / "file" / "chart.svg")
    for name in ("chart.pdf", "chart", "chart.svg.gz"):
        with pytest.raises(ConfigError, match=rf"\.png or \.svg, not '{name}'"):
            check_chart(tmp_path / name)
    for name in ("chart.PNG", "chart.Svg"):
        check_chart(tmp_path / name)
    assert [found.name for found in tmp_path.iterdir()] == ["file"]
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(BackendError, match=r"cellerate\[plots\]"):
        check_chart(tmp_path / "chart.png")


@pytest.mark.parametrize("suffix", ["svg", "png"])
def test_chart_drawn_twice_has_the_same_bytes_whatever_the_settings_of_matplotlib(tmp_path, suffix):
    import matplotlib

    draw_forecasts(tmp_path / f"a.{suffix}", [example(levels=(0.8,))], "t")
    with matplotlib.rc_context({"axes.facecolor": "black", "font.size": 30, "svg.hashsalt": "other"}):
        draw_forecasts(tmp_path / f"b.{suffix}", [example(levels=(0.8,))], "t")
        assert matplotlib.rcParams["font.size"] == 30
    first, second = ((tmp_path / f"{name}.{suffix}").read_bytes() for name in "ab")
    assert first == second
    assert b"<dc:date>" not in first


def test_names_are_shown_as_they_are(tmp_path):
    title = "a $\\frac$ <b> & 'c'"
    found = drawn(tmp_path, [example(("$", "_hidden"), series="<$y$ & z>")], title)
    assert {title, "<$y$ & z> · $", "<$y$ & z> · _hidden"} <= set(found.texts)


def test_names_with_what_no_file_may_hold_are_drawn_with_a_replacement(tmp_path):
    found = drawn(tmp_path, [example(("load",), series="a\x00b\nc\ud800d")], "東京 \x07")
    assert {"東京 \ufffd", "a\ufffdb c\ufffdd"} <= set(found.texts)


def test_long_title_and_names_are_shortened_to_fit(tmp_path):
    found = drawn(tmp_path, [example(("load",), series="s" * 500)], "begin " + "t" * 500 + " end")
    (title,) = (text for text in found.texts if text.startswith("begin"))
    assert title.endswith(" end")
    assert max(map(len, found.texts)) < 110


@pytest.mark.parametrize(
    ("times", "expected"),
    [
        # A night; days; weeks, on Mondays, over the end of a year; months; years; rows; numbers.
        (HOURS[12:], ["18:00", "03 Jan", "03 Jan 2024"]),
        (HOURS[0] + np.arange(48) * np.timedelta64(3, "h"), ["04 Jan", "05 Jan", "2024"]),
        (
            np.datetime64("2023-11-20", "us") + np.arange(48) * np.timedelta64(2, "D"),
            ["08 Jan", "2023 \N{EN DASH} 2024"],
        ),
        (np.arange("2020-01", "2024-01", dtype="datetime64[M]").astype("datetime64[us]"), ["Jul", "2022"]),
        (np.arange("1960", "2008", dtype="datetime64[Y]").astype("datetime64[us]"), ["1980", "1985"]),
        (np.arange(100_000, 100_048), ["100,025", "row"]),
        (np.arange(48) / 4, ["6.0", "10.5"]),
    ],
    ids=["hours", "days", "weeks", "months", "years", "rows", "numbers"],
)
def test_axis_of_times_is_written_as_its_span_asks(tmp_path, times, expected):
    found = drawn(tmp_path, [example(("load",), times=times, start=42, horizon=6)])
    assert set(expected) <= set(found.texts), found.texts


def test_ticks_of_days_are_even_across_the_end_of_a_month(tmp_path):
    times = np.datetime64("2024-01-18", "us") + np.arange(48) * np.timedelta64(12, "h")
    found = drawn(tmp_path, [example(("load",), times=times, start=42, horizon=6)])
    dates = [text for text in found.texts if text.endswith((" Jan", " Feb"))]
    days = np.diff([int(date[:2]) + 31 * date.endswith("Feb") for date in dates])
    assert len(days) > 2
    assert len(set(days)) == 1


@pytest.mark.parametrize(("first", "step"), [("0001-01-01", 20), ("9999-12-31T23", -20)])
def test_dates_at_the_ends_of_the_calendar_are_drawn(tmp_path, first, step):
    times = np.sort(np.datetime64(first, "us") + np.arange(48) * np.timedelta64(step, "D"))
    assert drawn(tmp_path, [example(("load",), times=times, start=24, horizon=24)]).panels == 1


def test_large_values_are_written_in_full(tmp_path):
    one = example(("load",))
    one.past[:] = np.linspace(1e6, 2e6, 24)[:, None]
    one.truth[:] = one.forecast[:] = 1.5e6
    assert {"1,200,000", "1,800,000"} <= set(drawn(tmp_path, [one]).texts)


def test_shorten_keeps_both_ends_and_counts_wide_characters_twice():
    assert shorten("store 12 / item 345", 40) == "store 12 / item 345"
    short = shorten("store 12 / item 345", 11)
    assert (short[:5], short[-3:], len(short)) == ("store", "345", 11)
    assert shorten("東京電力", 8) == "東京電力"
    assert shorten("東京電力", 5) == "東…力"


def test_spread_takes_the_first_and_the_last():
    assert spread(700, 12) == [0, 64, 127, 191, 254, 318, 381, 445, 508, 572, 635, 699]
    assert spread(3, 12) == [0, 1, 2]
    assert spread(5, 1) == [0]


def test_time_text_is_as_short_as_it_is_exact():
    assert time_text(np.datetime64("2024-01-01T00:00", "us")) == "2024-01-01"
    assert time_text(np.datetime64("2024-01-01T13:00", "us")) == "2024-01-01 13:00"
    assert time_text(np.datetime64("2024-01-01T00:00:07", "us")) == "2024-01-01 00:00:07"
    assert time_text(np.int64(1234)) == "row 1,234"
    assert time_text(0.25) == "0.25"
