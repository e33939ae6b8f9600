"""`train` and `forecast` on tables that `pack-series` packed."""

import csv
import io
import json

import pytest

pytestmark = pytest.mark.keras


def test_packed_series_trains_and_forecasts_like_its_tables(cellerate, here, small):
    code, out, _ = cellerate("data", "pack", "s.csv", "-o", "s.series", "--json")
    assert code == 0
    told = json.loads(out)
    assert (told["rows"], told["columns"], told["series"]) == (120, ["load", "other"], 1)
    assert told["bytes"] == sum(path.stat().st_size for path in (here / "s.series").iterdir())
    assert cellerate("data", "pack", "s.csv", "-o", "s.series")[0] == 0, "packed already"
    for data, model in (("s.csv", "a.keras"), ("s.series", "b.keras")):
        assert cellerate("train", "series", data, "-o", model, *small["series"], "-q")[0] == 0
    forecasts = [cellerate("forecast", "a.keras", "s.csv"), cellerate("forecast", "b.keras", "s.series")]
    assert forecasts[0] == forecasts[1]
    # Any of its columns can be the target, in any order and without the others.
    for target, feature in (("other", "load"), ("load", "other"), ("other", "other")):
        words = ["--target", target, "--feature", feature, *small["series"][2:]]
        for data, model in (("s.csv", "a.keras"), ("s.series", "b.keras")):
            assert cellerate("train", "series", data, "-o", model, *words, "-q", "--overwrite")[0] == 0
        shown = [cellerate("forecast", m, d) for m in ("a.keras", "b.keras") for d in ("s.csv", "s.series")]
        assert shown[0][0] == 0 and all(one == shown[0] for one in shown)


def test_model_of_a_packed_series_reads_tables_with_the_packing_options(cellerate, here, small):
    rows = (here / "s.csv").read_text().splitlines()
    shops = [f"{row},{shop}" for shop in "ab" for row in rows[1:]]
    shops[50] = shops[50].replace(shops[50].split(",")[1], "", 1)
    (here / "shops.csv").write_text("\n".join([rows[0] + ",shop", *shops]) + "\n")
    words = ["--series-column", "shop", "--missing", "ffill"]
    assert cellerate("data", "pack", "shops.csv", "-o", "shops.series", *words)[0] == 0
    assert cellerate("train", "series", "shops.series", "-o", "m.keras", *small["series"], "-q")[0] == 0
    code, out, _ = cellerate("forecast", "m.keras", "shops.csv")
    assert code == 0
    assert {row[0] for row in list(csv.reader(io.StringIO(out)))[1:]} == {"a", "b"}
    assert cellerate("forecast", "m.keras", "shops.series")[1] == out


def test_unusable_packed_series_gives_the_reason(cellerate, here, small):
    assert cellerate("data", "pack", "s.csv", "-o", "s.series", "--missing", "ffill")[0] == 0
    for words, said in (
        (["data", "pack", "s.csv", "-o", "s.packed"], "named *.series"),
        (["data", "pack", "s.csv", "-o", "s.series"], "holds something else"),
        (["data", "pack", "s.csv", "-o", "t.series", "--missing", "never"], "'never' is not one of 'error'"),
        (["data", "pack", "s.csv", "-o", "t.series", "--column", "date"], "is not a number"),
        (["data", "pack", "none.csv", "-o", "t.series"], "there is no file none.csv"),
        (["train", "series", "s.series", "s.csv", "-o", "m.keras", *small["series"]], "opened alone"),
        (
            ["train", "series", "s.series", "-o", "m.keras", *small["series"], "--missing", "drop"],
            "packed with",
        ),
        (["train", "series", "s.series", "-o", "m.keras", "--target", "none"], "has no column"),
    ):
        code, out, err = cellerate(*words)
        assert code in (2, 3) and said in err and not out, (words, err)
    assert sorted(path.name for path in here.glob("*.series*")) == ["s.series"]
    for path, content in (
        (here / "s.series" / "values.npy", b"x" * 100),
        (here / "s.series" / "series.json", b"{"),
    ):
        path.write_bytes(content)
        code, _, err = cellerate("train", "series", "s.series", "-o", "m.keras", *small["series"])
        assert code == 3 and "damaged" in err
