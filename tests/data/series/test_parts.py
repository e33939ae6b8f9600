"""The parts of a series: disjoint in time, by shares or by a test size."""

import math

import pytest

from cellerate.data.series.series import open_series
from cellerate.data.settings import Reading
from cellerate.data.windows.scaler import Scaler
from cellerate.data.windows.windows import SeriesBatches, WindowSettings
from cellerate.errors import ConfigError, DataError
from support.data.hourly_tables import hours, table


def test_split_parts_are_disjoint_in_time_and_look_back_for_inputs_only(write):
    data = open_series(write(table(1000)), Reading(targets=["a"]))
    window, horizon = 24, 6
    for split in (data.split(0.6, 0.25), data.split(counts=(600, 250, 150))):
        parts = (split.train, split.validation, split.test)
        assert [part.rows for part in parts] == [600, 250, 150]
        targets, inputs = [], []
        for part in parts:
            form = WindowSettings(window=window, horizon=horizon, batch_size=8, drop_last=False)
            source = SeriesBatches(part, form)
            batches = [source.batch(0, index) for index in range(len(source))]
            # Column a is the row number, so a batch says which rows it holds.
            inputs.append({int(v) for x, _, w in batches for v in x[w > 0][..., 0].ravel()})
            targets.append({int(v) for _, y, w in batches for v in y[w > 0].ravel()})
        assert targets[0] == set(range(window, 600))
        assert targets[1] == set(range(600, 850))
        assert targets[2] == set(range(850, 1000))
        assert min(inputs[1]) == 600 - window
        assert min(inputs[2]) == 850 - window
        assert max(inputs[0]) < 600


def test_split_does_not_look_back_across_a_gap(write):
    data = open_series(write(table(100, hours(60) + hours(40, "2017-01-01T00"))), Reading(targets=["a"]))
    split = data.split(counts=(60, 20, 20))
    assert split.validation.bounds == ((60, 60, 80),)
    assert split.validation.spans(10) == [(60, 80)]
    assert split.test.spans(10) == [(70, 100)]
    assert split.test.spans(90) == [(60, 100)]


def test_split_counts_rows_in_segments_only(write):
    holes = {(row, "a"): "" for row in range(10, 30)}
    data = open_series(write(table(120, hole=holes)), Reading(targets=["a"], missing="drop"))
    split = data.split(0.5, 0.2)
    assert [part.rows for part in (split.train, split.validation, split.test)] == [50, 20, 30]
    assert split.train.bounds == ((0, 0, 10), (30, 30, 70))


def test_split_by_test_size_holds_out_the_last_rows_of_each_series_whatever_its_length(write):
    rows = [f"{number},{'xy'[number >= 20]}" for number in range(60)]
    data = open_series(write("a,id\n" + "\n".join(rows)), Reading(targets=["a"], series_column="id"))
    split = data.split(0.7, 0.1, test_size=6)
    assert split.train.bounds == ((0, 0, 12), (20, 20, 50))
    assert split.validation.bounds == ((0, 12, 14), (20, 50, 54))
    assert split.test.bounds == ((0, 14, 20), (20, 54, 60))
    assert data.split(test_size=6, validation_size=3).validation.bounds == ((0, 11, 14), (20, 51, 54))
    with pytest.raises(
        DataError, match="series 'x' has 20 rows: test_size=18 and 2 rows of validation leave none"
    ):
        data.split(0.7, 0.1, test_size=18)


@pytest.mark.parametrize(
    "arguments",
    [
        {"train": 0.0},
        {"train": 0.9, "validation": 0.2},
        {"validation": -0.1},
        {"counts": (0, 1, 1)},
        {"train": math.nan},
    ],
)
def test_split_with_impossible_shares_raises_config_error(write, arguments):
    with pytest.raises(ConfigError, match="expected"):
        open_series(write(table(10)), Reading(targets=["a"])).split(**arguments)


def test_split_with_too_many_rows_or_an_empty_part_raises_data_error(write):
    data = open_series(write(table(10)), Reading(targets=["a"]))
    with pytest.raises(DataError, match="has 10 rows, but counts"):
        data.split(counts=(5, 5, 5))
    empty = data.split(1.0, 0.0).validation
    with pytest.raises(DataError, match="the validation part has no rows"):
        SeriesBatches(empty, WindowSettings(window=2, horizon=1, batch_size=1))
    with pytest.raises(DataError, match="validation part has no rows"):
        Scaler.fit(empty)
