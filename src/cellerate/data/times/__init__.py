"""Times: parsing a column of them, its form, order and zone, the frequency, and features of the calendar.

Nothing here reads a file: it works on the texts and numbers that a table holds.
"""

from cellerate.data.times.calendar_features import Calendar, check_holidays, check_times, make_calendar
from cellerate.data.times.column import TimeParser
from cellerate.data.times.date_order import LOOKED_AT, decide_order, swap_day_and_month
from cellerate.data.times.form import TimeForm
from cellerate.data.times.frequency import (
    WEEKDAYS,
    Frequency,
    check_agreement,
    days_apart,
    find_frequency,
    parse_frequency,
    season_of,
    settled,
)
from cellerate.data.times.patterns import WEEKDAY, way_of
from cellerate.data.times.zones import (
    and_an_hour_beside,
    check_zone,
    never_shown,
    shown_twice,
    to_instants,
    to_local,
    zones_of_repeats,
)

__all__ = [
    "LOOKED_AT",
    "WEEKDAY",
    "WEEKDAYS",
    "Calendar",
    "Frequency",
    "TimeForm",
    "TimeParser",
    "and_an_hour_beside",
    "check_agreement",
    "check_holidays",
    "check_times",
    "check_zone",
    "days_apart",
    "decide_order",
    "find_frequency",
    "make_calendar",
    "never_shown",
    "parse_frequency",
    "season_of",
    "settled",
    "shown_twice",
    "swap_day_and_month",
    "to_instants",
    "to_local",
    "way_of",
    "zones_of_repeats",
]
