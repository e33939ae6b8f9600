"""The REST API of TensorFlow Serving, and forecasts."""

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

from cellerate.runtime.packed import load
from support.graphs import draw
from support.servers import SCALER, plain_cell, series_cell, serving, text_cell


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> Any:
    folder = tmp_path_factory.mktemp("models")
    return (
        plain_cell(folder / "plain.cell"),
        text_cell(folder / "text.cell"),
        series_cell(folder / "series.cell", quantiles=(0.1, 0.5, 0.9)),
    )


@pytest.fixture(scope="module")
def http(files: Any) -> Iterator[Any]:
    with serving(*files) as running, running.client() as client:
        yield client


def test_row_and_column_formats_give_the_predictions_of_the_model(http, files):
    x = draw(4, 6, 3)
    right = load(files[0]).predict(x)
    for given in ({"instances": x.tolist()}, {"instances": [{"x": row} for row in x.tolist()]}):
        rows = http.post("/v1/models/plain:predict", json=given).json()["predictions"]
        for name in ("each", "last"):
            np.testing.assert_array_equal(np.array([row[name] for row in rows], np.float32), right[name])
    for given in ({"inputs": x.tolist()}, {"inputs": {"x": x.tolist()}, "signature_name": "serving_default"}):
        found = http.post("/v1/models/plain/versions/1:predict", json=given).json()["outputs"]
        for name in ("each", "last"):
            np.testing.assert_array_equal(np.array(found[name], np.float32), right[name])


def test_single_output_has_no_name_in_the_answer(http, files):
    right = load(files[1]).predict(np.array([[1, 2, 3]], np.int32))
    found = http.post("/v1/models/text:predict", json={"instances": [[1, 2, 3]]}).json()
    np.testing.assert_array_equal(np.array(found["predictions"], np.float32), right)
    found = http.post("/v1/models/text:predict", json={"inputs": [[1, 2, 3]]}).json()
    np.testing.assert_array_equal(np.array(found["outputs"], np.float32), right)


def test_model_is_described_for_both_protocols(http):
    told = http.get("/v1/models/plain").json()
    assert told["id"] == "plain"
    assert told["object"] == "model"
    assert told["model_version_status"][0]["state"] == "AVAILABLE"
    assert http.get("/v1/models/plain/versions/1").json() == told
    assert http.get("/v1/models/plain/versions/2").status_code == 404
    signature = http.get("/v1/models/plain/metadata").json()["metadata"]["signature_def"]["signature_def"]
    assert signature["serving_default"]["inputs"]["x"]["dtype"] == "DT_FLOAT"
    last = signature["serving_default"]["outputs"]["last"]
    assert last["dtype"] == "DT_FLOAT"
    assert [dim["size"] for dim in last["tensor_shape"]["dim"]] == ["-1", "7"]


@pytest.mark.parametrize(
    "path, given, status, message",
    [
        ("plain:predict", {}, 400, "either instances or inputs"),
        ("plain:predict", {"instances": [], "inputs": []}, 400, "either instances or inputs"),
        ("plain:predict", {"instances": []}, 400, "instances is empty"),
        ("plain:predict", {"instances": [{"x": [[1, 2, 3]]}, {"y": 1}]}, 400, "must have the inputs x"),
        ("plain:predict", {"instances": [[[1, 2, 3]], [[1, 2]]]}, 400, "rows of different lengths"),
        ("plain:predict", {"instances": ["text"]}, 400, "must be numbers"),
        ("plain:predict", {"instances": [[[1, 2]]]}, 400, "x"),
        ("plain:predict", {"instances": [[[1, 2, 3]]], "signature_name": "other"}, 400, "signature_name"),
        ("plain/versions/2:predict", {"instances": [[[1, 2, 3]]]}, 404, "no version '2'"),
        ("none:predict", {"instances": [[[1, 2, 3]]]}, 404, "there is no model 'none'"),
        ("plain:predict", {"instances": [[[1, 2, 1e39]]]}, 400, "a number that float32 cannot hold"),
        ("plain:predict", {"instance": [[[1, 2, 3]]]}, 400, "unknown field `instance`"),
        ("text:predict", {"instances": [[8]]}, 400, "8"),
        ("text:predict", {"inputs": [[1, -1]]}, 400, "holds -1 at [0, 1]"),
    ],
)
def test_request_that_cannot_be_computed_gives_the_reason(http, path, given, status, message):
    answer = http.post(f"/v1/models/{path}", json=given)
    assert answer.status_code == status
    assert message in answer.json()["error"]


def test_booleans_are_0_and_1(http):
    found = [
        http.post("/v1/models/plain:predict", json={"instances": [rows]}).json()
        for rows in ([[True, False, True]], [[1, 0, 1]])
    ]
    assert found[0] == found[1]
    assert "predictions" in found[0]


def test_forecast_equals_the_model_in_the_units_of_the_data(http, files):
    rows = draw(9, 2) * SCALER.scale + SCALER.mean
    right = load(files[2]).forecast(rows)
    found = http.post("/v1/models/series/forecast", json={"rows": rows.tolist()}).json()
    np.testing.assert_array_equal(np.array(found["forecast"]), right)
    several = http.post("/v1/models/series/forecast", json={"rows": [rows.tolist()] * 3}).json()
    assert np.array(several["forecast"]).shape == (3, 3, 2, 3)
    for wrong, message in (([[1, 2]], "has 1 row,"), ([[1]] * 9, "the features load, wind"), ([], "numbers")):
        answer = http.post("/v1/models/series/forecast", json={"rows": wrong})
        assert answer.status_code == 400
        assert message in answer.json()["error"]
    answer = http.post("/v1/models/plain/forecast", json={"rows": rows.tolist()})
    assert "needs a model of the task 'series'" in answer.json()["error"]
