"""Forecasters with covariates from training to the packed file."""

import csv
import json

import keras
import numpy as np
import pytest
from typer.testing import CliRunner

import cellerate
from cellerate.cli.main import app
from cellerate.data.settings import Reading
from cellerate.errors import ConfigError, DataError, ModelError
from cellerate.tasks.bulk import forecast_files
from cellerate.tasks.inference import forecast
from cellerate.tasks.judging.evaluation import evaluate_forecaster
from cellerate.tasks.opening import forecaster_of, open_model
from cellerate.tasks.series.train import train_on_series
from cellerate.tasks.settings import ForecastArchitecture, SeriesFiles, SeriesOptions
from cellerate.training.run import RunOptions
from cellerate.training.settings import TrainingSettings
from support.servers import serving

pytestmark = pytest.mark.keras

WINDOW, HORIZON, ROWS = 6, 2, 130
START = np.datetime64("2024-02-26T00:00")
LEVELS = {"small": 0.01, "large": 5000.0}


def write(path, rows=ROWS, known=ROWS, price=True, shops=LEVELS):
    """Two shops, hour by hour; what is sold follows the price of the hour and nothing else."""
    with path.open("w", newline="") as file:
        table = csv.writer(file)
        table.writerow(["date", "shop", "sold", *(["price"] if price else [])])
        for shop, level in shops.items():
            prices = np.random.default_rng(len(shop)).normal(size=ROWS + 10)
            for n in range(rows):
                sold = level * (3 - prices[n]) if n < known else ""
                time = str(START + np.timedelta64(n, "h")).replace("T", " ")
                table.writerow([time, shop, sold, *([prices[n]] if price else [])])
    return path


def fit(path, output, *, epochs=1, embedding=2, quantile=(), **changes):
    settings = {
        "paths": [path],
        "target": ["sold"],
        "series_column": "shop",
        "window": WINDOW,
        "horizon": HORIZON,
        "batch_size": 16,
        "future": ["price"],
        "calendar": ["hour", "weekday"],
        "scaling": "series",
    }
    return train_on_series(
        SeriesOptions.of_record(settings | changes),
        RunOptions(output=output, training=TrainingSettings(epochs=epochs, learning_rate=0.02)),
        architecture=ForecastArchitecture(
            units=8, dropout=0.0, quantile=quantile, series_embedding=embedding
        ),
    )


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    """A folder with a trained model, the data, and rows of prices after them."""
    folder = tmp_path_factory.mktemp("covariates")
    write(folder / "s.csv")
    fit(folder / "s.csv", folder / "m.keras", quantile=(0.1, 0.5, 0.9))
    cellerate.pack(folder / "m.keras", folder / "m.cell")
    write(folder / "ahead.csv", rows=ROWS + HORIZON)
    return folder


@pytest.mark.backends
def test_training_learns_from_a_price_that_is_known_in_advance(tmp_path):
    data = write(tmp_path / "s.csv")
    run = fit(data, tmp_path / "m.keras", epochs=25)
    # Without the price there is nothing to be known: prices are drawn at random.
    assert run.test["model"]["scaled_mae"] < 0.35 * run.test["last_value"]["scaled_mae"]
    examples = forecast(tmp_path / "m.keras", write(tmp_path / "a.csv", rows=ROWS + HORIZON, known=ROWS))
    for example in examples:
        prices = np.random.default_rng(len(example.series)).normal(size=ROWS + 10)[ROWS : ROWS + HORIZON]
        truth = LEVELS[example.series] * (3 - prices)
        assert np.abs(example.forecast[:, 0] - truth).max() < LEVELS[example.series]


@pytest.mark.backends
def test_a_model_is_calibrated_and_detects_up_to_the_last_row_that_has_a_price(tmp_path):
    data = write(tmp_path / "s.csv")
    fit(data, tmp_path / "m.keras", train_fraction=0.7, validation_fraction=0.3)
    assert forecaster_of(open_model(tmp_path / "m.keras")).settings.calibration is not None
    found = cellerate.detect(tmp_path / "m.keras", data)
    assert len(found.value) == 2 * (ROWS - WINDOW)
    assert np.isfinite(found.expected).all()


def test_packed_model_forecasts_and_is_judged_as_the_keras_model(made, tmp_path):
    ahead = write(tmp_path / "a.csv", rows=ROWS + HORIZON, known=ROWS)
    trained, packed = (forecast(made / name, ahead) for name in ("m.keras", "m.cell"))
    for one, other in zip(trained, packed, strict=True):
        assert one.series == other.series
        np.testing.assert_allclose(one.forecast, other.forecast, rtol=1e-4)
        assert other.times[0] == START + np.timedelta64(ROWS, "h")
    judged = [
        cellerate.evaluate(made / name, made / "s.csv", part="held-out") for name in ("m.keras", "m.cell")
    ]
    for name in ("model", "last_value"):
        assert judged[0][name] == pytest.approx(judged[1][name], rel=1e-4)


def test_table_of_the_future_and_rows_at_the_end_say_the_same(made, tmp_path):
    ahead = write(tmp_path / "a.csv", rows=ROWS + HORIZON, known=ROWS)
    lines = ahead.read_text().splitlines()
    header, *rows = (line.split(",") for line in lines)
    kept = [header, *(row for row in rows if not row[2])]
    future = tmp_path / "f.csv"
    future.write_text("\n".join(",".join([row[0], row[1], row[3]]) for row in kept))
    one = forecast(made / "m.cell", made / "s.csv", future=future)
    other = forecast(made / "m.cell", ahead)
    assert [e.forecast.tolist() for e in one] == [e.forecast.tolist() for e in other]
    done = CliRunner().invoke(
        app, ["forecast", str(made / "m.cell"), str(made / "s.csv"), "--future", str(future), "--json"]
    )
    shown = json.loads(done.stdout)["forecasts"][0]["rows"][0]["sold_q0.5"]
    assert shown == pytest.approx(one[0].forecast[0, 0, 1])
    with pytest.raises(DataError, match="no 'price' of series 'small'"):
        forecast(made / "m.cell", made / "s.csv")


def test_bulk_forecasts_equal_those_of_one_call(made, tmp_path):
    ahead = write(tmp_path / "a.csv", rows=ROWS + HORIZON, known=ROWS)
    done = forecast_files(made / "m.cell", SeriesFiles(ahead), tmp_path / "out")
    assert (done.pieces, done.done, done.items) == (1, 1, 2)
    pq = pytest.importorskip("pyarrow.parquet")
    table = pq.read_table(next((tmp_path / "out").glob("*.parquet"))).to_pydict()
    expected = np.concatenate([e.forecast[:, 0, 1] for e in forecast(made / "m.cell", ahead)])
    np.testing.assert_allclose(table["sold_q0.5"], expected, rtol=1e-6)


def test_mase_makes_series_of_any_size_alike(made):
    known = forecaster_of(open_model(made / "m.keras"))
    both = evaluate_forecaster(known, [made / "s.csv"], part="held-out")["last_value"]
    # The prices are alike, so in its own scale neither shop is worse; in units, one is 500,000 times as large.
    assert 0.5 < both["mase"] < 2
    assert both["mae"] > 1000


def test_unknown_series_is_forecast_at_its_own_size_and_told_of(made, tmp_path):
    ahead = write(tmp_path / "a.csv", rows=ROWS + HORIZON, known=ROWS, shops={"elsewhere": 70.0})
    with pytest.warns(UserWarning, match="'elsewhere'"):
        (example,) = forecast(made / "m.cell", ahead)
    assert 0 < example.forecast.min() < example.forecast.max() < 70 * 8
    done = CliRunner().invoke(app, ["forecast", str(made / "m.cell"), str(ahead)])
    assert done.exit_code == 0
    assert done.stderr.count("'elsewhere'") == 1
    assert "Warning" not in done.stderr


def test_record_holds_no_covariates_of_a_model_without_any(tmp_path):
    data = write(tmp_path / "s.csv", price=False)
    fit(data, tmp_path / "m.keras", future=[], calendar=[], scaling="global", embedding=0)
    model, record, _ = opened = open_model(tmp_path / "m.keras")
    assert "covariates" not in record.payload
    assert forecaster_of(opened).settings.covariates.plain
    assert [tuple(tensor.shape) for tensor in model.inputs] == [(None, WINDOW, 1)]


def test_own_model_is_given_the_inputs_it_names(tmp_path):
    data = write(tmp_path / "s.csv")
    inputs = {
        "series": keras.Input((WINDOW, 2), name="series"),
        "future": keras.Input((HORIZON, 1), name="future"),
        "series_id": keras.Input((1,), dtype="int32", name="series_id"),
    }
    x = keras.layers.LSTM(3)(inputs["series"])
    flat = [x, keras.layers.Flatten()(inputs["future"])]
    flat.append(keras.layers.Flatten()(keras.layers.Embedding(3, 2)(inputs["series_id"])))
    own = keras.Model(inputs, keras.layers.Dense(HORIZON)(keras.layers.Concatenate()(flat)))
    options = SeriesOptions(
        paths=[data],
        target=["sold"],
        reading=Reading(series_column="shop"),
        window=WINDOW,
        horizon=HORIZON,
        future=["price"],
    )
    train_on_series(
        options, RunOptions(output=tmp_path / "m.keras", training=TrainingSettings(epochs=1)), model=own
    )
    ahead = write(tmp_path / "a.csv", rows=ROWS + HORIZON, known=ROWS)
    assert forecast(tmp_path / "m.keras", ahead)[0].forecast.shape == (HORIZON, 1)
    with pytest.raises(ModelError, match=r"expected the inputs series \(None, 6, 4\), future \(None, 2, 3\)"):
        train_on_series(
            SeriesOptions(**vars(options) | {"calendar": ["hour"]}),
            RunOptions(output=tmp_path / "n.keras"),
            model=own,
        )


def test_embedding_of_a_single_series_is_refused(tmp_path):
    data = write(tmp_path / "s.csv", shops={"small": 1.0})
    with pytest.raises(ConfigError, match="series_embedding is for several series"):
        fit(data, tmp_path / "m.keras")


def test_calendar_without_times_is_refused_before_training(tmp_path):
    lines = write(tmp_path / "s.csv").read_text().splitlines()
    (tmp_path / "t.csv").write_text("\n".join(line.partition(",")[2] for line in lines))
    with pytest.raises(DataError, match="calendar needs the time of each row"):
        fit(tmp_path / "t.csv", tmp_path / "m.keras")
    with pytest.raises(ConfigError, match="'sold', which is a target"):
        fit(tmp_path / "t.csv", tmp_path / "m.keras", future=["sold"])


def test_server_forecasts_such_a_model_as_the_file_is_forecast(made, tmp_path):
    ahead = write(tmp_path / "a.csv", rows=ROWS + HORIZON, known=ROWS)
    expected = {one.series: one.forecast for one in forecast(made / "m.cell", ahead)}
    with ahead.open() as file:
        rows = list(csv.DictReader(file))
    by_shop = {shop: [row for row in rows if row["shop"] == shop][-WINDOW - HORIZON :] for shop in LEVELS}

    def asked(own):
        return {
            # The features of the training, in their order.
            "rows": [[float(row[name]) for name in features] for row in own[:WINDOW]],
            "future": [[float(row["price"])] for row in own[WINDOW:]],
            "times": [row["date"].replace(" ", "T") for row in own],
        }

    features = cellerate.load(made / "m.cell").features
    with serving(made / "m.cell") as running, running.client() as http:
        needed = http.get("/v1/models/m").json()["series"]
        assert (needed["future"], needed["times"], needed["series"]) == (["price"], WINDOW + HORIZON, True)
        for shop, own in by_shop.items():
            found = http.post("/v1/models/m/forecast", json={**asked(own), "series": shop})
            assert found.status_code == 200, found.text
            np.testing.assert_allclose(found.json()["forecast"], expected[shop], rtol=1e-4)
        both = [asked(own) for own in by_shop.values()]
        together = {key: [one[key] for one in both] for key in both[0]}
        found = http.post("/v1/models/m/forecast", json={**together, "series": list(by_shop)})
        np.testing.assert_allclose(found.json()["forecast"], list(expected.values()), rtol=1e-4)
        for missing, said in (("future", "future is missing"), ("times", "times is missing")):
            body = {key: value for key, value in both[0].items() if key != missing}
            refused = http.post("/v1/models/m/forecast", json=body)
            assert refused.status_code == 400
            assert said in refused.text
        refused = http.post("/v1/models/m/forecast", json={**both[0], "times": ["2024-01-01T00:00Z"] * 8})
        assert refused.status_code == 400
        assert "without an offset" in refused.text
        refused = http.post("/v1/models/m/sessions", json={"id": "one"})
        assert refused.status_code == 400
        assert "the rows of a stream say nothing of them" in refused.text


def test_options_of_the_program_train_and_refuse(tmp_path):
    data = write(tmp_path / "s.csv")
    words = ["train", "series", data, "--target", "sold", "--series-column", "shop", "--window", "6"]
    words += ["--horizon", "2", "--units", "4", "--epochs", "1", "-o", tmp_path / "m.keras", "--quiet"]
    more = ["--future", "price", "--calendar", "hour", "--calendar", "month", "--scaling", "series"]
    done = CliRunner().invoke(app, list(map(str, [*words, *more, "--series-embedding", "2"])))
    assert done.exit_code == 0, done.output
    known = forecaster_of(open_model(tmp_path / "m.keras")).settings
    assert known.covariates.calendar.parts == ("hour", "month")
    assert known.covariates.series == ("small", "large")


def test_series_too_short_to_train_on_is_an_unknown_one(tmp_path):
    path = write(tmp_path / "s.csv")
    with path.open("a", newline="") as file:
        for n in range(WINDOW + HORIZON + 1):
            time = str(START + np.timedelta64(n, "h")).replace("T", " ")
            csv.writer(file).writerow([time, "new", n, 0.5 * n])
    # Its own vector would be one that no window has trained.
    with pytest.warns(UserWarning, match="not trained on the series 'new'"):
        fit(path, tmp_path / "m.keras")
    made = open_model(tmp_path / "m.keras")
    assert forecaster_of(made).settings.covariates.series == tuple(LEVELS)
    assert made[0].get_layer("series_embedding").input_dim == 1 + len(LEVELS)
