import numpy as np
import pytest

from cellerate.data.series.series import SeriesData
from cellerate.data.windows.scaler import Scaler
from cellerate.data.windows.series_scaler import SeriesScaler
from cellerate.errors import DataError, ModelError


def data_of(*series, columns=("a", "b"), names="xyz"):
    """Several series, one after the other, as arrays (rows, columns)."""
    ends = np.cumsum([len(one) for one in series]).tolist()
    segments = tuple(zip([0, *ends], ends, names, strict=False))
    return SeriesData(
        np.concatenate(series).astype(np.float32), columns, (0, 1), (0,), None, segments, None, "f"
    )


def normal(mean, scale, rows=50, seed=0):
    return np.random.default_rng(seed).normal(mean, scale, (rows, 2))


def fitted(data):
    part = data.split(0.8, 0.1).train
    usual = Scaler.fit(part)
    return SeriesScaler.fit(part, usual), usual


def test_each_series_has_the_mean_and_deviation_of_its_training_rows():
    series = [normal(5, 2), normal(-3000, 700, seed=1)]
    scaler, _ = fitted(data_of(*series))
    mean, scale = scaler.of(scaler.known(["y", "x"]), np.zeros((2, 4, 2)))
    for place, one in enumerate(reversed(series)):
        rows = one[:40].astype(np.float32).astype(np.float64)
        np.testing.assert_allclose(mean[place], rows.mean(axis=0))
        np.testing.assert_allclose(scale[place], rows.std(axis=0))


def test_stretches_of_one_series_count_together():
    whole = normal(5, 2)
    parts = data_of(whole[:20], whole[20:], names="xx")
    scaler, _ = fitted(parts)
    mean, scale = scaler.of(scaler.known(["x"]), np.zeros((1, 4, 2)))
    rows = whole[:40].astype(np.float32).astype(np.float64)
    np.testing.assert_allclose([mean[0], scale[0]], [rows.mean(axis=0), rows.std(axis=0)])


OTHERS = [normal(5, 2), normal(4, 3, seed=1), normal(1e6, 1e5, seed=2)]


def test_series_of_zeros_gets_the_median_scale_of_the_others():
    scaler, _ = fitted(data_of(*OTHERS, np.zeros((50, 2)), names="xuvy"))
    _, scale = scaler.of(scaler.known(["y", "x", "u", "v"]), np.zeros((4, 4, 2)))
    np.testing.assert_allclose(scale[0], np.median(scale[1:], axis=0))


def test_series_of_nearly_zeros_gets_a_scale_between_those_of_the_others():
    scaler, _ = fitted(data_of(*OTHERS, 1e-12 * (1 + 0.5 * normal(0, 1, seed=3)), names="xuvy"))
    _, scale = scaler.of(scaler.known(["y", "x", "u", "v"]), np.zeros((4, 4, 2)))
    assert ((scale[0] > scale[1]) & (scale[0] < scale[2])).all()


def test_series_that_never_changes_gets_the_scale_of_its_size():
    # The shares of deviations in means are about 0.4, 0.2 and 0.1.
    others = [normal(5, 2), normal(500, 100, seed=1), normal(1e6, 1e5, seed=2)]
    scaler, _ = fitted(data_of(*others, np.full((50, 2), 7.0), names="xuvy"))
    mean, scale = scaler.of(scaler.known(["y", "x", "u", "v"]), np.zeros((4, 4, 2)))
    np.testing.assert_allclose(scale[0], 7 * np.median(scale[1:] / mean[1:], axis=0))


def test_column_that_changes_in_no_series_gets_the_scale_of_all():
    first, second = normal(5, 2), normal(9, 1)
    first[:, 1], second[:, 1] = 3, 4
    scaler, usual = fitted(data_of(first, second))
    _, scale = scaler.of(scaler.known(["x", "y"]), np.zeros((2, 4, 2)))
    np.testing.assert_array_equal(scale[:, 1], usual.scale[[1, 1]])


def test_small_series_beside_one_of_huge_numbers_keeps_its_own_scale():
    scaler, _ = fitted(data_of(normal(5, 2), normal(6, 3, seed=1), normal(1e9, 1e8, seed=2)))
    _, scale = scaler.of(scaler.known(["x"]), np.zeros((1, 4, 2)))
    np.testing.assert_allclose(scale[0], [2, 2], rtol=0.3)


def test_series_is_known_in_the_spelling_of_other_tables():
    scaler, _ = fitted(data_of(normal(5, 2), normal(9, 1), names=["1.0", "True"]))
    assert scaler.known(["true", "1", "2"]).tolist() == [1, 0, -1]


def test_unknown_series_is_scaled_by_its_own_window():
    scaler, _ = fitted(data_of(normal(5, 2), normal(9, 1)))
    past = np.stack([normal(1e4, 50, rows=12), np.full((12, 2), 3.0)])
    mean, scale = scaler.of(scaler.known(["new", "newer", "x", "y"]), np.concatenate([past, past]))
    np.testing.assert_allclose(mean[:2], past.mean(axis=1))
    np.testing.assert_allclose(scale[0], past[0].std(axis=0))
    np.testing.assert_allclose(scale[1], 3 * np.median(scale[2:] / mean[2:], axis=0))


def test_description_gives_the_same_scaler_and_damage_raises():
    scaler, usual = fitted(data_of(normal(5, 2), normal(9, 1)))
    config = scaler.to_config()
    again = SeriesScaler.from_config(config, usual)
    places = again.known(["x", "y"])
    for one, other in zip(
        again.of(places, np.zeros((2, 1, 2))), scaler.of(places, np.zeros((2, 1, 2))), strict=True
    ):
        np.testing.assert_array_equal(one, other)
    for damage in (
        {"names": ["x"]},
        {"scale": [[0.0, 1.0], [1.0, 1.0]]},
        {"mean": [[float("nan"), 1.0], [1.0, 1.0]]},
        {"names": [1, 2]},
        {"names": "xy"},
        {"names": [], "mean": [], "scale": []},
    ):
        with pytest.raises(ModelError, match="scaler of the series"):
            SeriesScaler.from_config(config | damage, usual)


def test_too_many_series_are_refused(monkeypatch):
    monkeypatch.setattr("cellerate.data.windows.series_scaler.MOST_NUMBERS", 3)
    with pytest.raises(DataError, match=r"2 series and 2 columns.*at most 3.*scaling='global'"):
        fitted(data_of(normal(5, 2), normal(9, 1)))


def test_series_too_large_for_a_scaler_is_named_though_all_together_are_not():
    part = data_of(normal(5, 2), normal(3e30, 1), normal(5, 2, rows=500)).whole()
    with pytest.raises(
        DataError, match=r"^column 'a' holds numbers of about 3e\+30 in series 'y', too large"
    ):
        SeriesScaler.fit(part, Scaler.fit(part))
