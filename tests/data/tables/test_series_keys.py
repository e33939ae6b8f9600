import warnings

import pandas as pd
import pytest

from cellerate.data.series.series import open_series
from cellerate.data.settings import Reading
from cellerate.data.tables import BySeries

WRITERS = {
    "csv": lambda frame, path: frame.to_csv(path, index=False),
    "parquet": lambda frame, path: frame.to_parquet(path),
    "xlsx": lambda frame, path: frame.to_excel(path, index=False),
    "jsonl": lambda frame, path: frame.to_json(path, orient="records", lines=True, date_format="iso"),
}
IDS = {
    "whole numbers": [1, 2],
    "floats": [1.0, 2.0],
    "fractions": [1.5, 2.0],
    "truth values": [True, False],
    "dates": list(pd.to_datetime(["2024-01-01", "2024-01-02"])),
    "texts": ["001", "NA"],
}


def names(table):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ResourceWarning)
        return [name for _, _, name in open_series(table, Reading(targets=["y"], series_column="s")).segments]


@pytest.mark.parametrize("kind", WRITERS)
@pytest.mark.parametrize("ids", IDS.values(), ids=IDS)
def test_series_of_a_frame_are_found_by_the_ids_of_each_file_of_it(tmp_path, ids, kind):
    days = pd.date_range("2024-01-01", periods=4)
    frame = pd.concat([pd.DataFrame({"date": days, "s": one, "y": [1.0, 2.0, 3.0, 4.0]}) for one in ids])
    path = tmp_path / f"t.{kind}"
    WRITERS[kind](frame, path)
    of_frame, of_file = names(frame.reset_index(drop=True)), names(path)
    for trained, found in ((of_frame, of_file), (of_file, of_frame)):
        series = BySeries({name: number for number, name in enumerate(trained)})
        assert [series.get(name, -1) for name in found] == [0, 1]


@pytest.mark.parametrize(
    ("trained", "name", "place"),
    [
        (["1", "1.0"], "1.0", 1),
        (["1", "1.0"], "1.00", -1),
        (["1"], "1.1", -1),
        (["01"], "1", -1),
        (["a / 1.0 / True"], "a / 1 / true", 0),
        (["a / 1.0 / True"], "b / 1 / true", -1),
        (["2024-01-01"], "2024-01-01T00:00:00.000", 0),
        (["2024-01-01"], "2024-01-01 06:00:00", -1),
        ([""], "", 0),
    ],
)
def test_id_as_it_stands_goes_first_and_others_are_found_if_one_alone_is_alike(trained, name, place):
    assert BySeries({one: number for number, one in enumerate(trained)}).get(name, -1) == place
