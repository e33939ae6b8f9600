import pickle

import numpy as np
import pandas as pd
import pytest
from sktime.datasets import load_airline
from sktime.utils._testing.hierarchical import _make_hierarchical
from sktime.utils.estimator_checks import check_estimator

import cellerate
from cellerate.adapters import SktimeLSTM
from cellerate.errors import ConfigError, DataError

pytestmark = [pytest.mark.keras, pytest.mark.filterwarnings("ignore")]

SMALL = {"window": 6, "units": 4, "epochs": 2, "validation_fraction": 0.3}


@pytest.fixture(scope="module")
def y():
    return load_airline()


@pytest.fixture(scope="module")
def fitted(y):
    return SktimeLSTM(**SMALL).fit(y[:-4], fh=[1, 2, 4])


def later(fitted, y, **further):
    """As one that goes on from another state: without training again."""
    return pickle.loads(pickle.dumps(fitted)).update(y, update_params=False, **further)


def test_forecasts_are_those_of_train_series_and_forecast(fitted, y, tmp_path):
    path = tmp_path / "m.keras"
    frame = {"y": y[:-4].to_numpy()}
    how = {"window": 6, "horizon": 4, "train_fraction": 0.7, "validation_fraction": 0.3}
    cellerate.train_series(frame, path, target=["y"], units=4, epochs=2, **how)
    expected = cellerate.forecast(path, frame)[0]
    found = fitted.predict()
    np.testing.assert_allclose(found, expected.forecast[[0, 1, 3], 0], rtol=1e-5)
    assert list(found.index) == list(y.index[[-4, -3, -1]])
    around = fitted.predict_interval(coverage=[0.8])
    np.testing.assert_allclose(around, expected.intervals[0.8][[0, 1, 3], 0], rtol=1e-5)


def test_rows_that_came_later_are_seen_and_change_no_weight(fitted, y):
    found = later(fitted, y[-4:]).predict()
    expected = fitted.trained_.model.forecast(y.to_numpy()[-6:, None])
    np.testing.assert_allclose(found, expected[[0, 1, 3], 0])
    assert found.index[0] == y.index[-1] + 1


def test_each_series_of_a_hierarchy_is_forecast_from_its_own_rows():
    frame = _make_hierarchical((2, 2), min_timepoints=20, max_timepoints=20, n_columns=2, random_state=0)
    made = SktimeLSTM(**SMALL).fit(frame, fh=[2, 3]).predict()
    model = SktimeLSTM(**SMALL).fit(frame, fh=[2, 3])
    assert len(made) == 8 and made.index.names == frame.index.names
    for key, own in frame.groupby(level=[0, 1]):
        expected = model.trained_.model.forecast(own.to_numpy()[-6:])
        np.testing.assert_allclose(made.loc[key], expected[1:], rtol=1e-5)


def test_x_is_known_in_advance(y):
    rows = np.arange(120)
    x = pd.DataFrame({"x": np.random.default_rng(0).normal(size=124)})
    target = pd.Series(np.sin(rows / 5) + 3 * x["x"][:120].to_numpy())
    # Without the linear map, which would be all of a model that training has not made better.
    plain = {"options": {"residual": False, "linear": False}}
    model = SktimeLSTM(**SMALL, **plain).fit(target, X=x[:120], fh=[1, 4])
    made = model.predict(X=x[120:])
    again = x[120:].copy()
    again.iloc[3] += 5
    assert not np.allclose(model.predict(X=again), made)
    rows = np.stack([target, x["x"][:120]], axis=1)[-6:]
    expected = model.trained_.model.forecast(rows, future=x.to_numpy()[120:])
    np.testing.assert_allclose(made, expected[[0, 3], 0], rtol=1e-5)
    with pytest.raises(DataError, match="4 rows after the last one, and got 2"):
        model._predict(model.fh, x[120:122])


@pytest.fixture(scope="module")
def known():
    """Rows of two columns known in advance, and a forecaster of y fitted to all but the last five of them."""
    times = pd.period_range("2024-01", periods=65, freq="M")
    x = pd.DataFrame(np.random.default_rng(0).normal(size=(65, 2)), times, ["p", "q"])
    plain = {"options": {"residual": False, "linear": False}}
    return x, SktimeLSTM(**SMALL, **plain).fit(x["p"][:60] - x["q"][:60], X=x[:60], fh=[1, 4])


def test_x_of_the_horizon_is_taken_by_name_and_by_time(known):
    x, model = known
    rows = np.column_stack([x["p"] - x["q"], x])[54:60]
    expected = model.trained_.model.forecast(rows, future=x[60:64].to_numpy())[[0, 3], 0]
    for given in (x[60:64][["q", "p"]], x[60:], x):
        np.testing.assert_allclose(model.predict(X=given), expected, rtol=1e-5)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda x: x[["q"]], r"X has no column \['p'\]: give"),
        (lambda x: x.assign(r=1.0), r"fit had none of the columns \['r'\] of X: give"),
        (
            lambda x: x.rename(columns={"p": "r"}),
            r"no column \['p'\] and fit had none of the columns \['r'\]",
        ),
        (lambda x: x[1:], "4 rows after the last one, and got 3: the row of 2029-01 is missing"),
        (lambda x: x.drop(x.index[2]), "got 3: the row of 2029-03 is missing"),
    ],
)
def test_x_without_what_the_horizon_needs_is_refused(known, change, message):
    x, model = known
    with pytest.raises(DataError, match=message):
        model.predict(X=change(x[60:65]))


def test_x_of_a_panel_is_taken_by_series_name_and_time():
    times = pd.RangeIndex(44)
    index = pd.MultiIndex.from_product([["a", "b"], times], names=["s", "t"])
    x = pd.DataFrame(np.random.default_rng(0).normal(size=(88, 2)), index, ["p", "q"])
    y = (x["p"] - x["q"]).to_frame("y")
    past, ahead = index.get_level_values("t") < 40, index.get_level_values("t") >= 40
    model = SktimeLSTM(**SMALL, options={"residual": False, "linear": False}).fit(y[past], X=x[past], fh=[4])
    made = model.predict(X=x[ahead])
    np.testing.assert_array_equal(model.predict(X=x[["q", "p"]]), made)
    with pytest.raises(
        DataError, match="rows after the last one of the series 'b', and got 3: the row of 41 is"
    ):
        model.predict(X=x[ahead].drop(("b", 41)))
    with pytest.raises(DataError, match="X has no rows of the series 'b'"):
        model.predict(X=x[ahead].loc[["a"]])


def test_quantiles_are_ordered_and_those_out_of_reach_have_no_bound(fitted):
    found = fitted.predict_quantiles(alpha=[0.001, 0.1, 0.5, 0.9, 0.999])
    assert (np.diff(found.to_numpy(), axis=1) > 0).all()
    assert np.isneginf(found.iloc[:, 0]).all() and np.isposinf(found.iloc[:, -1]).all()
    np.testing.assert_allclose(found.iloc[:, 2], fitted.predict())


def test_a_model_with_quantiles_forecasts_their_median_and_intervals_around_the_others(y):
    model = SktimeLSTM(**SMALL, options={"quantile": [0.1, 0.5, 0.9]}).fit(y, fh=[1, 2])
    made = model.trained_.model.forecast(y.to_numpy()[-6:, None])
    np.testing.assert_allclose(model.predict(), made[:, 0, 1], rtol=1e-5)
    found = model.predict_quantiles(alpha=[0.3, 0.5, 0.7]).to_numpy()
    assert (np.diff(found, axis=1) > 0).all()
    np.testing.assert_allclose(found[:, 1], made[:, 0, 1], rtol=1e-5)
    # Calibrated around the outer quantiles, which need not hold their shares.
    width = made[:, 0, 2] - made[:, 0, 0]
    shift = ((found[:, 2] - found[:, 0]) - width) / 2
    np.testing.assert_allclose(found[:, 0], made[:, 0, 0] - shift, rtol=1e-4, atol=1e-4)


def test_calendar_needs_times(y):
    rows = {**SMALL, "calendar": ["month"]}
    model = SktimeLSTM(**rows).fit(y, fh=[1, 2])
    assert np.isfinite(model.predict()).all()
    stamps = y.to_timestamp()
    np.testing.assert_allclose(
        SktimeLSTM(**rows).fit(stamps, fh=[1, 2]).predict(), model.predict(), rtol=1e-4
    )
    with pytest.raises(ConfigError, match="calendar needs an index of times, and that of y is a RangeIndex"):
        SktimeLSTM(**rows).fit(pd.Series(np.arange(30.0)), fh=1)


def test_it_works_inside_what_sktime_builds_of_forecasters(y):
    from sktime.forecasting.compose import TransformedTargetForecaster
    from sktime.forecasting.model_evaluation import evaluate
    from sktime.forecasting.model_selection import ForecastingGridSearchCV
    from sktime.split import ExpandingWindowSplitter
    from sktime.transformations.boxcox import LogTransformer

    pipe = TransformedTargetForecaster([LogTransformer(), SktimeLSTM(**SMALL)])
    splits = ExpandingWindowSplitter(fh=[1, 2], initial_window=100, step_length=20)
    judged = evaluate(pipe, splits, y, strategy="no-update_params")
    assert len(judged) == 3 and np.isfinite(judged.filter(like="test_")).all().all()
    search = ForecastingGridSearchCV(
        SktimeLSTM(**SMALL), splits, {"units": [2, 4]}, strategy="no-update_params"
    )
    assert search.fit(y, fh=[1, 2]).best_params_["units"] in (2, 4)


_QUICK = [
    "test_clone",
    "test_constructor",
    "test_deepcopy_fitted_predict",
    "test_doctest_examples",
    "test_fit_idempotent",
    "test_get_test_params",
    "test_object_tags",
    "test_persistence_via_pickle",
    "test_predict_series_name_preserved",
    "test_set_params_sklearn",
    "test_update_with_exogenous_variables",
    "test_valid_object_tags",
]


@pytest.mark.parametrize("tests", [_QUICK, pytest.param(None, marks=pytest.mark.slow)], ids=["quick", "all"])
def test_it_passes_the_checks_of_sktime(tests, monkeypatch):
    if tests is not None:
        every = SktimeLSTM.get_test_params()
        monkeypatch.setattr(
            SktimeLSTM, "get_test_params", classmethod(lambda cls, parameter_set="default": every[0])
        )
    found = check_estimator(SktimeLSTM, tests_to_run=tests, verbose=False)
    assert {name: what for name, what in found.items() if what != "PASSED"} == {}
    assert len(found) > (20 if tests is not None else 800)
