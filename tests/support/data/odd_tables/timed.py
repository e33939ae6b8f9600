"""Files whose times are odd."""

from typing import Any

import numpy as np

from support.data.odd_tables.odd import DAYS, Odd, rows, text, written


def m5() -> str:
    """Two key columns, with the series interleaved by day."""
    lines = ["store,item,date,sold"]
    for place, day in enumerate(DAYS):
        for store in ("CA_1", "TX_1"):
            lines += [
                f"{store},{item},{day},{place + 10 * bonus}" for bonus, item in enumerate(("food", "toys"))
            ]
    return "\n".join(lines)


def timed() -> list[Odd]:
    """Files whose times are odd."""
    business = written(np.busday_offset("2024-01-01", range(10), roll="forward"))
    ten = tuple(map(str, range(10)))
    months = written(np.arange("2020-01", "2020-11", dtype="datetime64[M]"))
    firsts = tuple(f"{month}-01" for month in months)
    quarters = tuple(f"{year}Q{quarter}" for year in (2020, 2021) for quarter in (1, 2, 3, 4))
    starts = tuple(f"{year}-{month:02}-01" for year in (2020, 2021) for month in (1, 4, 7, 10))
    weeks = tuple(f"2024-W{week:02}" for week in range(1, 11))
    mondays = written(np.datetime64("2024-01-01") + 7 * np.arange(10))
    hours = np.datetime64("2024-01-01T00", "h") + np.arange(10)
    epoch = hours.astype("datetime64[s]").astype(int)
    change = (
        "2023-10-29 01:00+02:00",
        "2023-10-29 02:00+02:00",
        "2023-10-29 02:00+01:00",
        "2023-10-29 03:00+01:00",
    )
    changed = ("2023-10-28T23:00", "2023-10-29T00:00", "2023-10-29T01:00", "2023-10-29T02:00")
    twice = tuple(time[:16] for time in change)

    def of(about: str, times: tuple[str, ...], known: tuple[str, ...] | None = None, **facts: Any) -> Odd:
        numbers = tuple(map(str, range(len(times))))
        if "words" not in facts:
            facts = {"values": tuple(map(float, range(len(times)))), "times": known, **facts}
        return text(about, rows(numbers, times), **facts)

    return [
        of("business days", business, business),
        of("months", months, firsts),
        of("first days of months", firsts, firsts),
        of("quarters", quarters, starts),
        of("weeks", weeks, mondays),
        of("yyyymmdd", tuple(day.replace("-", "") for day in DAYS), DAYS),
        of("epoch seconds", tuple(map(str, epoch)), written(hours)),
        of("epoch milliseconds", tuple(map(str, 1000 * epoch)), written(hours)),
        of(
            "US dates", ("01/12/2024", "01/13/2024", "01/14/2024"), ("2024-01-12", "2024-01-13", "2024-01-14")
        ),
        of("dates with the day first", ("12/01/2024", "13/01/2024"), ("2024-01-12", "2024-01-13")),
        of(
            "US dates that are said to be",
            ("01/02/2024", "01/03/2024"),
            ("2024-01-02", "2024-01-03"),
            options={"date_order": "mdy"},
        ),
        of("dates of two readings", ("01/02/2024", "01/03/2024"), words=r"date_order"),
        of(
            "dates in two ways",
            ("2024-01-01", "02.01.2024", "2024-01-03"),
            words=r"'02\.01\.2024' in data row 2",
        ),
        of("clock change with zones", change, changed),
        of("clock change without zones", twice, words=r"twice"),
        of("descending rows", tuple(reversed(DAYS)), DAYS, values=(3, 2, 1, 0)),
        of("duplicates", ("2024-01-01", "2024-01-01", "2024-01-02"), words=r"twice"),
        text(
            "M5-like",
            m5(),
            values=(*range(4), *range(10, 14)) * 2,
            arguments={"targets": ["sold"], "series_column": ["store", "item"]},
            series=("CA_1 / food", "CA_1 / toys", "TX_1 / food", "TX_1 / toys"),
        ),
        text(
            "a month column",
            "month,y\n" + "\n".join(map(",".join, zip(months, ten, strict=True))),
            values=tuple(range(10)),
            times=firsts,
        ),
    ]
