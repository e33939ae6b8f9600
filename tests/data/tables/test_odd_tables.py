import re

import numpy as np
import pytest

from cellerate.data.series.series import open_series
from cellerate.data.settings import Reading
from cellerate.data.settings.tables import TableOptions
from cellerate.errors import CellerateError
from cellerate.listener import Callbacks
from support.data.odd_tables import Odd, odd_tables

ALL = odd_tables()


@pytest.fixture(autouse=True)
def own_cache(monkeypatch, tmp_path):
    monkeypatch.setenv("CELLERATE_CACHE", str(tmp_path / "cache"))


def opened(odd: Odd, folder, told=None):
    path = folder / odd.name
    path.write_bytes(odd.content)
    return open_series(
        path,
        Reading(**({"targets": ["y"]} | odd.arguments)),
        table=TableOptions(**odd.options),
        listener=Callbacks(message=told),
    )


@pytest.mark.parametrize("odd", [one for one in ALL if one.values is not None], ids=lambda odd: odd.about)
def test_odd_table_is_read_right_and_told(odd, tmp_path):
    said: list[str] = []
    data = opened(odd, tmp_path, said.append)
    assert data.values[:, data.target_columns[0]].tolist() == np.float32(odd.values).tolist()
    if odd.times is not None:
        assert np.array_equal(data.times, np.array(odd.times, "datetime64[us]"))
    if odd.series is not None:
        assert tuple(name for _, _, name in data.segments) == odd.series
    expected = [f"{tmp_path / odd.name} read as: {odd.told}"] if odd.told else []
    assert [line for line in said if " read as: " in line] == expected


@pytest.mark.parametrize("odd", [one for one in ALL if one.values is None], ids=lambda odd: odd.about)
def test_odd_table_is_refused_in_the_right_words(odd, tmp_path):
    with pytest.raises(CellerateError) as caught:
        opened(odd, tmp_path)
    assert re.search(odd.words, str(caught.value), re.DOTALL), str(caught.value)


def test_odd_tables_are_many_and_each_has_one_outcome():
    assert len(ALL) >= 40
    assert all((odd.values is None) == bool(odd.words) for odd in ALL)
    assert len({odd.about for odd in ALL}) == len(ALL)
