"""The separator of tables whose cells hold the other separators, too."""

import csv
import io
import random

import pytest

from cellerate.data.settings.tables import TableOptions
from cellerate.data.tables.csv_dialect import find_dialect
from cellerate.errors import DataError

NOTES = ("up, by a lot", "a;b", "x|y|z", "it's fine", '5" pipe', "-", "costs 1,234.50; more", "a\nb", "")
CELLS = {
    "date": lambda r: f"{r.randint(1, 28):02}.01.2024",
    "time": lambda r: f"2024-01-{r.randint(1, 28):02} {r.randrange(24):02}:00",
    "whole": lambda r: str(r.randrange(10 ** r.randint(1, 6))),
    "point": lambda r: f"{100 * r.random():.2f}",
    "comma": lambda r: f"{100 * r.random():.2f}".replace(".", ","),
    "grouped": lambda r: f"{r.randint(1000, 10**7):,}",
    "pair": lambda r: f"{r.randrange(90)},{r.randrange(90)}",
    "note": lambda r: r.choice(NOTES),
}


@pytest.mark.parametrize("seed", range(300))
def test_separator_is_found_beside_other_separators_in_cells(tmp_path, seed):
    chosen = random.Random(seed)
    separator, kinds = chosen.choice(",;\t|"), chosen.choices(list(CELLS), k=chosen.randint(2, 6))
    quoting = chosen.choice([csv.QUOTE_MINIMAL, csv.QUOTE_MINIMAL, csv.QUOTE_ALL])
    text = io.StringIO()
    writer = csv.writer(text, delimiter=separator, quoting=quoting, lineterminator="\n")
    header = chosen.choice(["yes", "no"])
    if header == "yes":
        writer.writerow([f"{kind}{place}" for place, kind in enumerate(kinds)])
    writer.writerows([CELLS[kind](chosen) for kind in kinds] for _ in range(chosen.choice([3, 8, 40, 150])))
    (tmp_path / "t.csv").write_text(text.getvalue())
    assert find_dialect(tmp_path / "t.csv", TableOptions(decimal=".", header=header)).separator == separator


def test_rows_that_fit_two_separators_alike_are_refused_with_both(tmp_path):
    (tmp_path / "t.csv").write_text("a;b|c\n1;2|3\n4;5|6\n")
    with pytest.raises(DataError, match=r"semicolons.*'\|'.*separator=';' or separator='\|'"):
        find_dialect(tmp_path / "t.csv", TableOptions())
    assert find_dialect(tmp_path / "t.csv", TableOptions(separator="|")).names == ("a;b", "c")
