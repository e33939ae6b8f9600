import warnings

import pytest

from cellerate.cli.tables import given_words, notes_at_end
from cellerate.data.settings.tables import TableOptions
from cellerate.messages import Message, argument

pytestmark = pytest.mark.keras


def german(path):
    lines = path.read_text().splitlines()
    path.write_bytes("\n".join(line.replace(",", ";").replace(".", ",") for line in lines).encode("utf-16"))


def test_verbs_report_how_they_read_a_table_and_accept_its_options(cellerate, here, made):
    plain = cellerate("forecast", made / "series.keras", "s.csv")
    german(here / "s.csv")
    code, shown, told = cellerate("forecast", made / "series.keras", "s.csv")
    assert (code, shown) == plain[:2]
    assert "s.csv read as: UTF-16, ';' between columns, ',' decimal\n" in told
    assert " read as" not in plain[2]
    assert " read as" not in cellerate("forecast", made / "series.keras", "s.csv", "-q")[2]
    code, _, told = cellerate("forecast", made / "series.keras", "s.csv", "--decimal", "point")
    assert code != 0 and "--decimal comma" in told
    code, _, told = cellerate("data", "pack", "s.csv", "-o", "s.series", "--separator", ";")
    assert code == 0 and "',' decimal" in told
    code, _, told = cellerate("evaluate", made / "series.keras", "s.csv")
    assert code == 0 and "',' decimal" in told


@pytest.mark.parametrize("verb", ["forecast", "detect", "backtest", "embed"])
def test_table_that_would_replace_its_data_is_refused(cellerate, here, made, verb):
    model, data = ("embed", "s.parquet") if verb == "embed" else ("series", "s.csv")
    (here / "s.parquet").write_bytes(b"kept")
    (here / "link.csv").symlink_to(data)
    before = (here / data).read_bytes()
    code, _, told = cellerate(verb, made / f"{model}.keras", "link.csv", "-o", data)
    assert code == 2 and f"{data} has the data to read, which would be replaced" in told
    assert (here / data).read_bytes() == before


def test_options_of_tables_are_repeated_as_typed():
    given = TableOptions(separator="\t", decimal=",", thousands="none", header="no", skip_lines=2)
    assert " ".join(given_words(given)) == (
        "--separator tab --decimal , --thousands none --header no --skip-lines 2"
    )
    assert given_words(TableOptions()) == []


@pytest.mark.parametrize("quiet", [False, True])
def test_notes_are_shown_once_and_warnings_even_if_quiet(quiet, capsys, speak_of):
    speak_of("train", "series")
    with notes_at_end(quiet) as told:
        for _ in range(2):
            told(Message(f"rows were sorted by {argument('time_column')}"))
            warnings.warn("the model was not trained on the series 'a'.", stacklevel=1)
        assert capsys.readouterr().err == "the model was not trained on the series 'a'.\n"
    assert capsys.readouterr().err == ("" if quiet else "rows were sorted by --time-column\n")
