from pathlib import Path

import keras
import numpy as np
import pytest

import cellerate
from cellerate.data.loaders.loader import Loader
from cellerate.errors import ConfigError, DataError

pytestmark = [pytest.mark.keras, pytest.mark.backends]

needs_tensorflow = pytest.mark.skipif(
    keras.config.backend() != "tensorflow", reason="runs when TensorFlow is the backend"
)
needs_torch = pytest.mark.skipif(keras.config.backend() != "torch", reason="runs when torch is the backend")
DRAW = np.random.default_rng(3)
ROWS = 97
NUMBERED = np.arange(ROWS * 2, dtype=np.float32).reshape(ROWS, 2)  # row r is (2r, 2r + 1)
TABLE = {"load": np.arange(60.0), "price": np.arange(60.0) * 10}


@needs_tensorflow
@pytest.mark.parametrize(
    "values",
    [
        pytest.param(DRAW.normal(size=(ROWS, 3)).astype(np.float32), id="float32"),
        pytest.param(DRAW.normal(size=ROWS), id="one-axis-float64"),
        pytest.param(DRAW.integers(0, 9, (ROWS, 2)), id="whole-numbers"),
        pytest.param(DRAW.normal(size=(ROWS, 4, 2)).astype(np.float32), id="three-axes"),
    ],
)
@pytest.mark.parametrize(
    ("arguments", "targets"),
    [
        ({}, None),
        ({"sequence_stride": 3, "sampling_rate": 2}, ROWS),
        ({"start_index": 11, "end_index": 80, "sampling_rate": 3}, ROWS),
        ({"batch_size": 7, "sequence_stride": 9}, 40),
        ({"batch_size": 10, "shuffle": True, "seed": 4}, ROWS),
    ],
)
def test_windows_are_those_of_keras(values, arguments, targets) -> None:
    own = None if targets is None else DRAW.normal(size=(targets, 2)).astype(np.float32)
    asked = {"sequence_length": 9, "batch_size": 16} | arguments
    found = list(cellerate.windows(values, own, **asked))
    theirs = list(keras.utils.timeseries_dataset_from_array(values, own, **asked))
    assert [len(batch[0]) for batch in found] == [len(b if own is None else b[0]) for b in theirs]
    for k, mine in enumerate(zip(*found, strict=True)):
        wanted = [np.asarray(batch if own is None else batch[k]) for batch in theirs]
        one, other = np.concatenate(mine), np.concatenate(wanted)
        if other.dtype == np.float64:
            other = other.astype(np.float32)
        if "shuffle" in asked:
            one, other = (np.array(sorted(map(bytes, each))) for each in (one, other))
        assert one.dtype == other.dtype
        assert np.array_equal(one, other)


def model_of(batches: Loader, outputs: int) -> keras.Model:
    model = keras.Sequential(
        [keras.Input(batches.input_shape), keras.layers.Flatten(), keras.layers.Dense(outputs)]
    )
    model.compile("sgd", "mse")
    return model


@pytest.mark.parametrize("shuffle", [True, False], ids=["fit-shuffles", "fit-in-order"])
def test_fit_is_given_the_batches_of_each_epoch_in_the_order_of_the_source(monkeypatch, shuffle) -> None:
    batches = cellerate.windows(NUMBERED / 200, None, 4, batch_size=10, shuffle=True, seed=1, horizon=1)
    wanted = [[x for x, _ in batches.source.batches(epoch)] for epoch in (0, 1)]
    assert [len(x) for x in wanted[0]] == [10] * 9 + [3]
    assert not np.array_equal(wanted[0][0], wanted[1][0])
    served: dict[int, list[np.ndarray]] = {}
    get, begin = Loader.__getitem__, Loader.on_epoch_begin

    def watched(self: Loader, index: int):
        batch = get(self, index)
        served.setdefault(self.epoch, []).append(batch[0])
        return batch

    def begun(self: Loader) -> None:
        # Before its first epoch, Keras takes a batch for the shapes alone.
        served[self.epoch] = []
        begin(self)

    monkeypatch.setattr(Loader, "__getitem__", watched)
    monkeypatch.setattr(Loader, "on_epoch_begin", begun)
    model_of(batches, 1).fit(batches, epochs=2, shuffle=shuffle, verbose=0)
    assert (batches.epoch, len(served)) == (2, 2)
    for epoch in (0, 1):
        assert np.array_equal(np.concatenate(served[epoch]), np.concatenate(wanted[epoch]))


def test_training_that_goes_on_at_an_epoch_is_given_the_same_batches() -> None:
    def trained(*parts: tuple[int, int]) -> np.ndarray:
        keras.utils.set_random_seed(0)
        model = model_of(cellerate.windows(NUMBERED / 200, "1", 4), 1)
        for first, last in parts:
            # As in a process of its own.
            batches = cellerate.windows(NUMBERED / 200, "1", 4, batch_size=16, shuffle=True, seed=5)
            batches.epoch = first
            model.fit(batches, initial_epoch=first, epochs=last, verbose=0)
        return np.asarray(model.get_weights()[0])

    assert np.array_equal(trained((0, 3)), trained((0, 1), (1, 3)))


def test_series_of_a_table_is_split_in_time_scaled_by_training_and_taken_back() -> None:
    train, validation, test = cellerate.windows(
        TABLE, "price", 5, horizon=2, shuffle=True, seed=2, scale=True, batch_size=8
    ).split(0.5, 0.25)
    assert (train.feature_names, train.target_names) == (("load", "price"), ("price",))
    rows = [
        np.concatenate([part.unscale(y)[..., 0] / 10 for _, y in part]) for part in (train, validation, test)
    ]
    assert sorted(rows[0][:, 0].round().tolist()) == list(range(5, 29))
    assert rows[1][:, 0].round().tolist() == list(range(30, 44))
    assert rows[2][:, 0].round().tolist() == list(range(45, 59))
    assert test.scaler is train.scaler
    # The mean and the deviation of the rows that are trained on.
    assert train.scaler.mean.tolist() == [14.5, 145]
    model = model_of(train, 2)
    model.fit(train, validation_data=validation, epochs=1, verbose=0)
    assert test.unscale(model.predict(test, verbose=0)).shape == (14, 2)


def test_parts_without_a_share_are_left_out() -> None:
    batches = cellerate.windows(NUMBERED, None, 5)
    train, validation = batches.split(0.8, 0.2)
    # Without a target, no window reaches into the part before.
    assert validation[0][0][0, 0, 0] == 2 * 78
    assert sum(len(part[k][0]) for part in (train, validation) for k in range(len(part))) == (78 - 4) + (
        19 - 4
    )


def test_windows_of_files_cross_no_gap_and_say_what_was_read(tmp_path: Path) -> None:
    path = tmp_path / "hours.csv"
    hours = [f"2024-01-01T{hour:02}:00,{hour}" for hour in (*range(10), *range(12, 20))]
    path.write_text("\n".join(["time,a", *hours]))
    told: list[str] = []
    found = cellerate.windows(path, "a", 3, batch_size=64, notify=told.append)
    assert found[0][0][:, 0, 0].tolist() == [*range(7), *range(12, 17)]
    assert found[0][1].ravel().tolist() == [*range(3, 10), *range(15, 20)]
    cellerate.windows(tmp_path / "hours.csv", "a", 3, gaps="ignore", notify=told.append)
    path.write_text(path.read_text().replace(",", ";"))
    cellerate.windows(path, "a", 3, notify=told.append)
    assert any("';' between columns" in line for line in told)
    path.write_text("\n".join(["time,a", *reversed(hours)]))
    cellerate.windows(path, "a", 3, notify=told.append)
    assert any(line.startswith("sorted 18 rows by time") for line in told), told


def test_seed_that_is_not_given_follows_that_of_keras() -> None:
    def order() -> np.ndarray:
        return cellerate.windows(NUMBERED, None, 4, batch_size=200, shuffle=True)[0][0]

    keras.utils.set_random_seed(1)
    first, second = order(), order()
    keras.utils.set_random_seed(1)
    assert np.array_equal(order(), first)
    assert not np.array_equal(first, second)


def test_large_file_is_shuffled_in_blocks_with_the_targets_of_its_windows(tmp_path: Path) -> None:
    rows = 2_200_000
    values = np.lib.format.open_memmap(tmp_path / "a.npy", mode="w+", dtype=np.float32, shape=(rows, 4))
    values[:, 0] = np.arange(rows)
    values.flush()
    batches = cellerate.windows(
        np.load(tmp_path / "a.npy", mmap_mode="r"), np.arange(rows), 5, sampling_rate=2, shuffle=True, seed=0
    )
    for number in (0, 9000, len(batches) - 1):
        x, y = batches[number]
        assert np.array_equal(x[:, :, 0], y[:, None] + np.arange(0, 10, 2))


@needs_tensorflow
def test_tf_dataset_has_the_same_batches_the_short_one_too() -> None:
    batches = cellerate.windows(NUMBERED, "0", 4, batch_size=10)
    dataset = batches.as_tf_dataset()
    assert dataset.element_spec[0].shape.as_list() == [None, 4, 2]
    for found, wanted in zip(dataset.as_numpy_iterator(), batches, strict=True):
        assert all(map(np.array_equal, found, wanted))


@needs_torch
def test_torch_dataset_has_the_same_batches_the_short_one_too() -> None:
    batches = cellerate.windows(NUMBERED, "0", 4, batch_size=10, shuffle=True, seed=0)
    batches.epoch = 3
    for found, wanted in zip(batches.as_torch_dataset(epoch=3), batches, strict=True):
        assert all(np.array_equal(one.numpy(), other) for one, other in zip(found, wanted, strict=True))


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ({"data": [1.0, 2.0]}, "paths of tables, or frames"),
        (
            {"data": np.array(["a", "b"])},
            "data has the shape .2,. and the type <U1; expected an array of numbers",
        ),
        ({"data": np.float32(3)}, "expected an array of numbers"),
        ({"data": "nowhere.csv", "targets": "a"}, "there is no file nowhere.csv"),
        ({"data": TABLE}, "targets is None; expected the names of columns"),
        ({"data": TABLE, "targets": ["load"], "end_index": 3}, "start_index and end_index are for arrays"),
        ({"data": TABLE, "targets": "load", "horizon": 0}, "horizon is 0"),
        ({"data": TABLE, "targets": "cost"}, "cost"),
        ({"targets": "2"}, 'no column \'2\' for targets: .* has the columns "0" to "1"'),
        ({"features": ["0", "x"]}, "no column 'x' for features"),
        ({"data": np.zeros(9), "targets": "0"}, r"the data have the shape .9,.: expected \(rows, columns\)"),
        ({"targets": np.zeros(ROWS), "horizon": 2}, "leave one of the two out"),
        ({"targets": 3}, "targets has the shape"),
        ({"sequence_length": 0}, "sequence_length is 0"),
        ({"sequence_length": 98}, "has 97 rows"),
        ({"sampling_rate": 0}, "sampling_rate is 0"),
        ({"batch_size": None}, "batch_size is None"),
        ({"batch_size": 95, "drop_last": True}, "fewer than one batch of 95"),
        ({"start_index": 50, "end_index": 40}, "start_index is 50 and end_index 40; expected rows"),
        ({"end_index": 98}, "0 to 97"),
        ({"start_index": -1}, "start_index is -1"),
        ({"shuffle": "yes"}, "shuffle is 'yes'; expected True or False"),
        ({"shuffle": True, "seed": 1.5}, "seed must be a whole number"),
        ({"missing": "drop"}, "missing say how tables are read"),
        ({"sequence_lenght": 3}, "did you mean 'sequence_length'"),
        ({"data": NUMBERED * np.nan, "scale": True}, "cannot be scaled .*NaN"),
    ],
)
def test_argument_that_cannot_be_used_is_refused_in_words(arguments, words) -> None:
    asked = {"data": NUMBERED, "targets": None, "sequence_length": 4} | arguments
    with pytest.raises((ConfigError, DataError), match=words):
        cellerate.windows(**asked)


def test_split_of_targets_without_a_time_is_refused_and_so_is_a_share_above_all() -> None:
    with pytest.raises(ConfigError, match=r"name columns as targets .*start_index and end_index"):
        cellerate.windows(NUMBERED, np.zeros(ROWS), 4).split()
    with pytest.raises(ConfigError, match="sum of at most 1"):
        cellerate.windows(NUMBERED, "0", 4).split(0.9, 0.2)
    with pytest.raises(DataError, match="no window fits"):
        cellerate.windows(NUMBERED, "0", 4, horizon=9).split(0.9, 0.05)
