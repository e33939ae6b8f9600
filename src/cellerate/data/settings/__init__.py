"""The settings for reading data, as a user writes them, with their checks.

The command line makes its options from them, so nothing here imports NumPy.
"""

from cellerate.data.settings.calendar import PARTS, CalendarPart, check_calendar
from cellerate.data.settings.choices import Duplicates, Gaps, Missing, Padding, Storage
from cellerate.data.settings.reading import FILLED_IN, Reading
from cellerate.data.settings.tables import DateOrder, TableOptions, with_missing

__all__ = [
    "FILLED_IN",
    "PARTS",
    "CalendarPart",
    "DateOrder",
    "Duplicates",
    "Gaps",
    "Missing",
    "Padding",
    "Reading",
    "Storage",
    "TableOptions",
    "check_calendar",
    "with_missing",
]
