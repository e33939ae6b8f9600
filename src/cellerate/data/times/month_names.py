"""The months by their names in the languages whose files are common."""

from __future__ import annotations

_NAMES = (
    # English, German, French, Spanish, Italian, Portuguese, Dutch
    "january february march april may june july august september october november december sept",
    "januar februar märz april mai juni juli august september oktober november dezember mrz jänner",
    "janvier février mars avril mai juin juillet août septembre octobre novembre décembre fevrier aout decembre",
    "enero febrero marzo abril mayo junio julio agosto septiembre octubre noviembre diciembre setiembre",
    "gennaio febbraio marzo aprile maggio giugno luglio agosto settembre ottobre novembre dicembre",
    "janeiro fevereiro março abril maio junho julho agosto setembro outubro novembro dezembro marco",
    "januari februari maart april mei juni juli augustus september oktober november december mrt",
)
_FURTHER = {
    **{"sept": 9, "mrz": 3, "jänner": 1, "fevrier": 2, "aout": 8, "decembre": 12},
    **{"setiembre": 9, "marco": 3, "mrt": 3},
}
_MONTHS = {
    word: _FURTHER.get(word, place) for line in _NAMES for place, word in enumerate(line.split(), start=1)
}
_LEAST_LETTERS = 3


def month_number(name: str) -> int:
    """1 to 12 for a month's name or its beginning; 0 for any other text, and for an ambiguous beginning."""
    low = name.lower().removesuffix(".")
    if len(low) < _LEAST_LETTERS:
        return 0
    found = {month for word, month in _MONTHS.items() if word.startswith(low)}
    return found.pop() if len(found) == 1 else 0
