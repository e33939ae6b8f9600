"""Sessions over HTTP: results, restarts of the server, and a report of every lost session."""

import json
import math
import signal
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from cellerate.runtime.packed import load
from support.graphs import draw
from support.servers import SCALER, plain_cell, refusal, series_cell, serving, text_cell


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> Any:
    folder = tmp_path_factory.mktemp("models")
    return {
        "plain": plain_cell(folder / "plain.cell"),
        "text": text_cell(folder / "text.cell"),
        "series": series_cell(folder / "series.cell"),
        "quantiles": series_cell(folder / "quantiles.cell", quantiles=(0.1, 0.5, 0.9)),
    }


@pytest.fixture(scope="module")
def http(files: Any) -> Iterator[Any]:
    with serving(*files.values()) as running, running.client() as client:
        yield client


def push(http: Any, name: str, inputs: Any, model: str = "plain", **more: Any) -> Any:
    return http.post(f"/v1/models/{model}/sessions/{name}/push", json={"inputs": inputs, **more})


def test_session_continues_from_its_last_state(http, files):
    x = draw(11, 3)
    right = load(files["plain"]).predict(x[None])
    assert http.post("/v1/models/plain/sessions", json={"id": "pump 1"}).status_code == 201
    got = [push(http, "pump 1", x[a:b].tolist()).json()["outputs"] for a, b in ((0, 1), (1, 2), (2, 11))]
    np.testing.assert_array_equal(
        np.concatenate([np.array(each["each"], np.float32) for each in got]), right["each"][0]
    )
    np.testing.assert_array_equal(np.array(got[-1]["last"], np.float32), right["last"][0])
    assert http.get("/v1/models/plain/sessions/pump 1").json()["unused_s"] < 30
    assert http.delete("/v1/models/plain/sessions/pump 1").status_code == 204
    gone = push(http, "pump 1", x.tolist())
    assert gone.status_code == 404
    assert gone.json()["error"] == "there is no session 'pump 1': open it first."


def test_text_sessions_read_text(http, files):
    assert push(http, "t", "abc", "text", begin=True).status_code == 200
    found = push(http, "t", "de", "text", end=True).json()["outputs"]["logits"]
    right = load(files["text"]).predict(np.array([[0, 1, 2, 3, 4]], np.int32))
    np.testing.assert_array_equal(np.array(found, np.float32), right[0, 3:])
    assert push(http, "t", "xyz", "text", begin=True).status_code == 400
    assert "unknown field `ends`" in push(http, "t", "de", "text", begin=True, ends=True).json()["error"]
    assert "holds -1 at [1]" in push(http, "t", [0, -1], "text", begin=True).json()["error"]
    assert push(http, "x", "abc", "plain", begin=True).json()["error"].startswith("plain reads no text")


def test_lines_of_many_sessions_are_answered_in_order_and_independently(http, files):
    x = {name: draw(6, 3, seed=n) for n, name in enumerate(("a", "b", 7))}
    lines = [json.dumps({"id": name, "inputs": rows[:2].tolist(), "begin": True}) for name, rows in x.items()]
    lines += ["", "no json", json.dumps({"id": "unknown", "inputs": [[1, 2, 3]]})]
    lines += [json.dumps({"id": name, "inputs": rows[2:].tolist(), "end": True}) for name, rows in x.items()]
    answer = http.post("/v1/models/plain/push", content="\n".join(lines))
    assert answer.headers["content-type"] == "application/jsonl"
    told = [json.loads(line) for line in answer.text.splitlines()]
    assert [each.get("id") for each in told] == ["a", "b", "7", None, "unknown", "a", "b", "7"]
    assert told[3]["status"] == 400
    assert "the body is not JSON" in told[3]["error"]
    assert told[4] == {
        "id": "unknown",
        "error": "there is no session 'unknown': open it first.",
        "status": 404,
    }
    for n, rows in enumerate(x.values()):
        right = load(files["plain"]).predict(rows[None])["each"][0]
        got = told[n]["outputs"]["each"] + told[5 + n]["outputs"]["each"]
        np.testing.assert_array_equal(np.array(got, np.float32), right)
    assert http.get("/v1/models/plain/sessions/7").status_code == 404, "it ended with its last push"


def test_session_whose_first_push_fails_does_not_exist(http):
    wrong = push(http, "w", [[1.0, 2.0]], begin=True)
    assert wrong.status_code == 400
    assert http.get("/v1/models/plain/sessions/w").status_code == 404


@pytest.mark.parametrize("model, quantiles", [("series", ()), ("quantiles", (0.1, 0.5, 0.9))])
def test_forecaster_reads_rows_in_the_units_of_the_data_and_scores_each(http, files, model, quantiles):
    rows = draw(8, 2, seed=4).astype(np.float64) * SCALER.scale + SCALER.mean
    packed = load(files[model])
    # After reading one window of rows, a stream gives the forecast of that window.
    first = push(http, "s", rows[:6].tolist(), model, begin=True).json()["outputs"]
    right = packed.forecast(rows[:6])
    np.testing.assert_allclose(first["forecast"], right, rtol=1e-5)
    assert np.array(first["forecast"]).shape == (3, 2, *([3] if quantiles else []))
    assert first["score"][0] is None
    assert all(math.isfinite(score) for score in first["score"][1:])
    second = push(http, "s", rows[6:].tolist(), model, end=True).json()["outputs"]
    expected = right[0, :, 1] if quantiles else right[0]
    error = np.sqrt(np.mean(((rows[6] - expected) / SCALER.scale) ** 2))
    assert second["score"][0] == pytest.approx(error, rel=1e-4)
    # Pushes cut at other rows give the same results.
    one = push(http, "s", rows[:1].tolist(), model, begin=True).json()["outputs"]
    rest = push(http, "s", rows[1:].tolist(), model, end=True).json()["outputs"]
    assert one["score"] == [None]
    assert rest["score"] == first["score"][1:] + second["score"]
    assert rest["forecast"] == second["forecast"]
    for wrong in ([[1.0]], {}, [1.0, 2.0], {"series": [[[1.0, 2.0]]]}):
        answer = push(http, "s", wrong, model, begin=True)
        assert answer.status_code == 400
        assert "each step must be 2 numbers, load, wind" in answer.json()["error"]


def test_number_too_large_for_float32_is_refused_and_affects_no_series(http):
    for name in ("huge", "beside", "alone"):
        push(http, name, [[1.0, 2.0]], "series", begin=True)
    alone = push(http, "alone", [[3.0, 4.0]], "series").json()["outputs"]
    answer = push(http, "huge", [[1e308, 2.0]], "series")
    assert answer.status_code == 400
    assert "column 'load' has a number that is too large for float32" in answer.json()["error"]
    assert push(http, "beside", [[3.0, 4.0]], "series").json()["outputs"] == alone
    # Nothing of it was read.
    assert push(http, "huge", [[3.0, 4.0]], "series").json()["outputs"] == alone


def test_number_too_large_for_float32_is_refused_in_a_model_of_numbers_and_not_read(http):
    for name in ("big", "small"):
        push(http, name, [[1.0, 2.0, 3.0]], begin=True)
    assert push(http, "big", [[1e39, 2.0, 3.0]]).status_code == 400
    found = [push(http, name, [[1.0, 2.0, 3.0]]).json()["outputs"] for name in ("big", "small")]
    assert found[0] == found[1]


def test_state_moves_to_another_session_and_not_to_another_model(http, files):
    rows = draw(8, 2).tolist()
    push(http, "from", rows[:5], "series", begin=True)
    state = http.get("/v1/models/series/sessions/from/state").json()
    assert http.put("/v1/models/series/sessions/to/state", json=state).status_code == 200
    assert (
        push(http, "from", rows[5:], "series").json()["outputs"]
        == push(http, "to", rows[5:], "series").json()["outputs"]
    )
    other = http.put("/v1/models/quantiles/sessions/to/state", json=state)
    assert other.status_code == 409
    assert "belongs to another model than quantiles" in other.json()["error"]
    for wrong in ("????", "AAAA", "AAA"):
        answer = http.put("/v1/models/series/sessions/to/state", json=state | {"state": wrong})
        assert answer.status_code == 400, answer.text


@pytest.mark.parametrize("sent", [signal.SIGTERM, signal.SIGINT])
def test_sessions_survive_a_server_restart(files, tmp_path, sent):
    x = draw(50, 9, 3)
    right = load(files["plain"]).predict(x)["each"]

    def lines(first: int, last: int, **more: Any) -> str:
        return "\n".join(
            json.dumps({"id": n, "inputs": rows[first:last].tolist(), **more}) for n, rows in enumerate(x)
        )

    with serving(files["plain"], options=("--state", str(tmp_path))) as server:
        with server.client() as http:
            http.post("/v1/models/plain/push", content=lines(0, 4, begin=True))
        assert server.stop(sent) == 0
    with serving(files["plain"], options=("--state", str(tmp_path))) as server, server.client() as http:
        assert http.get("/v1/models/plain/sessions").json() == {"model": "plain", "sessions": 50}
        answer = http.post("/v1/models/plain/push", content=lines(4, 9))
    for row, line in zip(right, answer.text.splitlines(), strict=True):
        np.testing.assert_array_equal(np.array(json.loads(line)["outputs"]["each"], np.float32), row[4:])


def test_second_server_on_the_same_sessions_is_refused(files, tmp_path):
    options = ("--state", str(tmp_path))
    with serving(files["plain"], options=options):
        said = refusal(files["plain"], options=options)
        assert "is in use by another server" in said
        assert "another folder (--state)" in said


def test_ended_session_is_reported_and_sessions_are_limited(files):
    options = ("--session-ttl-s", "0.2", "--sessions", "3")
    with serving(files["plain"], options=options) as server, server.client() as http:
        for n in range(3):
            assert http.post("/v1/models/plain/sessions", json={"id": n}).status_code == 201
        full = http.post("/v1/models/plain/sessions", json={"id": 3})
        assert full.status_code == 429
        assert "there are 3 sessions already" in full.json()["error"]
        time.sleep(0.5)
        answer = push(http, "0", [[1.0, 2.0, 3.0]])
        assert answer.status_code == 410
        assert "ended: it was not used for 0.2 s" in answer.json()["error"]


def test_hot_reload_keeps_sessions_of_the_same_model_and_refuses_another_model(tmp_path):
    path = text_cell(tmp_path / "text.cell")
    with serving(path) as server, server.client() as http:
        before = push(http, "t", "abc", "text", begin=True).json()
        text_cell(path)  # the same file again
        server.process.send_signal(signal.SIGHUP)
        server.until("the same model")
        assert push(http, "t", "abc", "text").json() != before, "it goes on"
        text_cell(path, seed=1)
        answer = http.post("/v2/repository/models/text/load")
        assert answer.status_code == 409
        assert "1 sessions belong to the old one" in answer.json()["error"]
        http.delete("/v1/models/text/sessions/t")
        ask = {"model": "text", "prompt": "abc", "max_tokens": 30, "seed": 1}
        old = http.post("/v1/completions", json=ask).json()["choices"][0]["text"]
        assert http.post("/v2/repository/models/text/load").json() == {"changed": True}
        new = http.post("/v1/completions", json=ask).json()["choices"][0]["text"]
        assert new == load(path).generate("abc", max_tokens=30, seed=1) != old
        Path(path).write_bytes(b"damaged")
        assert http.post("/v2/repository/models/text/load").status_code == 400
        assert http.post("/v1/completions", json=ask).json()["choices"][0]["text"] == new
