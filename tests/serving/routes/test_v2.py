"""Triton's official client against a server, and the rules of its protocol."""

import gzip
import json
import zlib
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import tritonclient.http as triton
from tritonclient.utils import InferenceServerException

from cellerate.runtime.packed import load
from support.graphs import draw
from support.servers import Server, plain_cell, series_cell, serving, text_cell


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> Any:
    folder = tmp_path_factory.mktemp("models")
    return plain_cell(folder / "plain.cell"), text_cell(folder / "text.cell")


@pytest.fixture(scope="module")
def server(files: Any) -> Iterator[Server]:
    with serving(*files) as running:
        yield running


@pytest.fixture(scope="module")
def client(server: Server) -> Iterator[triton.InferenceServerClient]:
    made = triton.InferenceServerClient(server.address.removeprefix("http://"))
    yield made
    made.close()


def tensor(array: np.ndarray, name: str = "x", *, binary: bool = True) -> triton.InferInput:
    kind = {"f": "FP32", "i": "INT32"}[array.dtype.kind]
    made = triton.InferInput(name, list(array.shape), kind)
    made.set_data_from_numpy(array, binary_data=binary)
    return made


def test_server_and_models_describe_themselves(client):
    assert client.is_server_live()
    assert client.is_server_ready()
    assert client.is_model_ready("plain")
    assert client.is_model_ready("plain", "1")
    assert not client.is_model_ready("plain", "2")
    assert not client.is_model_ready("other")
    told = client.get_server_metadata()
    assert told["name"] == "cellerate"
    assert "sequence(string_id)" in told["extensions"]
    about = client.get_model_metadata("plain")
    assert about["inputs"] == [{"name": "x", "datatype": "FP32", "shape": [-1, -1, 3]}]
    assert about["outputs"] == [
        {"name": "each", "datatype": "FP32", "shape": [-1, -1, 4]},
        {"name": "last", "datatype": "FP32", "shape": [-1, 7]},
    ]
    assert client.get_model_metadata("text")["outputs"] == [
        {"name": "logits", "datatype": "FP32", "shape": [-1, -1, 8]}
    ]
    assert [each["name"] for each in client.get_model_repository_index()] == ["plain", "text"]


def test_configuration_has_tensors_without_their_batch(client):
    found = client.get_model_config("plain")
    assert found["input"] == [{"name": "x", "data_type": "TYPE_FP32", "dims": [-1, 3]}]
    assert found["output"] == [
        {"name": "each", "data_type": "TYPE_FP32", "dims": [-1, 4]},
        {"name": "last", "data_type": "TYPE_FP32", "dims": [7]},
    ]
    assert found["max_batch_size"] >= 1
    assert client.get_model_config("text", "1")["input"][0]["data_type"] == "TYPE_INT32"
    with pytest.raises(InferenceServerException, match="there is plain, text"):
        client.get_model_config("other")


@pytest.mark.parametrize("replacing", [None, {"file:1/model.cell": b"abc"}])
def test_load_refuses_another_configuration_or_file_rather_than_ignore_it(client, replacing):
    client.load_model("plain")
    with pytest.raises(InferenceServerException, match="load has the parameter 'config'"):
        client.load_model("plain", config="{}", files=replacing)


def test_statistics_count_calls_and_rows_that_returned_or_failed(client):
    def of_plain():
        (found,) = client.get_inference_statistics("plain")["model_stats"]
        return found, {name: part["count"] for name, part in found["inference_stats"].items()}

    before, counts_before = of_plain()
    for rows in (5, 2):
        client.infer("plain", [tensor(draw(rows, 4, 3))])
    with pytest.raises(InferenceServerException, match="steps"):
        client.infer("plain", [tensor(np.zeros((1, 100_001, 3), np.float32))])
    after, counts = of_plain()
    assert after["inference_count"] - before["inference_count"] == 7
    assert after["execution_count"] - before["execution_count"] == 2
    assert {
        name: counts[name] - counts_before[name] for name in ("success", "queue", "compute_infer", "fail")
    } == {
        "success": 2,
        "queue": 2,
        "compute_infer": 2,
        "fail": 1,
    }
    assert after["last_inference"] >= before["last_inference"]
    parts = after["inference_stats"]
    assert 0 < parts["compute_infer"]["ns"] < parts["success"]["ns"]
    every = client.get_inference_statistics()["model_stats"]
    assert [each["name"] for each in every] == ["plain", "text"]


@pytest.mark.parametrize("sent", [True, False], ids=["binary-in", "json-in"])
@pytest.mark.parametrize("got", [True, False], ids=["binary-out", "json-out"])
@pytest.mark.parametrize("packing", [None, "gzip", "deflate"])
def test_outputs_equal_the_model_in_json_and_binary_form(client, files, sent, got, packing):
    x = draw(5, 40, 3)
    right = load(files[0]).predict(x)
    found = client.infer(
        "plain",
        [tensor(x, binary=sent)],
        outputs=[triton.InferRequestedOutput(name, binary_data=got) for name in ("last", "each")],
        request_id="seven",
        request_compression_algorithm=packing,
        response_compression_algorithm=packing,
    )
    for name in ("each", "last"):
        np.testing.assert_array_equal(found.as_numpy(name), right[name])
    told = found.get_response()
    assert told["id"] == "seven"
    assert told["model_name"] == "plain"
    assert [each["name"] for each in told["outputs"]] == ["last", "each"]


def test_request_without_a_list_of_outputs_gets_all(client, files):
    x = draw(1, 3, 3)
    found = client.infer("plain", [tensor(x)])
    assert [each["name"] for each in found.get_response()["outputs"]] == ["each", "last"]
    np.testing.assert_array_equal(found.as_numpy("last"), load(files[0]).predict(x, ["last"]))


def test_text_model_accepts_ids_as_integers(client, files):
    ids = np.array([[0, 1, 2, 7]], np.int32)
    found = client.infer("text", [tensor(ids, "ids")])
    np.testing.assert_array_equal(found.as_numpy("logits"), load(files[1]).predict(ids))


@pytest.mark.parametrize("sequence", [42, 2**63 + 5, "a stream"])
def test_sequence_is_a_session(client, files, sequence):
    x = draw(1, 12, 3)
    right = load(files[0]).predict(x)
    got = []
    for first, last in ((0, 1), (1, 8), (8, 12)):
        found = client.infer(
            "plain",
            [tensor(x[:, first:last])],
            sequence_id=sequence,
            sequence_start=first == 0,
            sequence_end=last == 12,
        )
        got.append(found.as_numpy("each"))
    np.testing.assert_array_equal(np.concatenate(got, axis=1), right["each"])
    with pytest.raises(InferenceServerException, match="there is no session"):
        client.infer("plain", [tensor(x)], sequence_id=sequence)


def test_sequence_that_never_began_is_an_error(client):
    with pytest.raises(InferenceServerException, match="there is no session '9'"):
        client.infer("plain", [tensor(draw(1, 2, 3))], sequence_id=9)
    client.infer("plain", [tensor(draw(1, 2, 3))], sequence_id=9, sequence_start=True)
    with pytest.raises(InferenceServerException, match="takes one row"):
        client.infer("plain", [tensor(draw(2, 2, 3))], sequence_id=9)


def test_start_of_an_open_sequence_starts_it_over(client, files):
    x = draw(1, 9, 3)
    right = load(files[0]).predict(x)["each"]
    for first in (x[:, 3:8], x[:, :4], x[:, :2]):
        client.infer("plain", [tensor(first)], sequence_id=11, sequence_start=True)
    got = client.infer("plain", [tensor(x[:, 2:])], sequence_id=11)
    np.testing.assert_array_equal(got.as_numpy("each"), right[:, 2:])


def body(**changes: Any) -> dict[str, Any]:
    one = {"name": "x", "shape": [1, 1, 3], "datatype": "FP32", "data": [1.0, 2.0, 3.0]}
    return {"inputs": [one | changes]}


@pytest.mark.parametrize(
    "given, message",
    [
        (body(data=[1.0]), "must have data of 3 FP32, for its shape is [1, 1, 3]; got 1."),
        (body(data=[[1.0], [2.0, 3.0]]), "got rows of different lengths"),
        (body(data=None), "got none"),
        (body(data=["a", "b", "c"]), "got text"),
        (body(datatype="BYTES"), "has the datatype 'BYTES'"),
        (body(datatype="INT8", data=[1, 2, 300]), "numbers that INT8 cannot hold"),
        (body(datatype="INT8", data=[1, 2, 0.5]), "got fractions"),
        (body(name="y"), "inputs holds 'y'"),
        (body(shape=[1, 3]), "x"),
        (body(shape=[-1, 3]), "shape"),
        (body(parameters={"binary_data_size": 12}, data=None), "binary_data_size is 12, and 0 bytes are left"),
        ({"inputs": []}, "inputs"),
        ({"inputs": [body()["inputs"][0]] * 2}, "comes twice"),
        ({**body(), "outputs": [{"name": "none"}]}, "there is no output 'none'; there is each, last"),
        ({**body(), "parameters": {"sequence_id": 1.5}}, "sequence_id is 1.5"),
        ({**body(), "parameters": {"sequence_id": 1, "sequence_start": 1}}, "sequence_start is 1"),
        ({**body(), "parameters": {"binary_data_output": "yes"}}, "binary_data_output is 'yes'; expected true"),
        ({**body(), "outputs": [{"name": "last", "parameters": {"binary_data": 1}}]}, "binary_data is 1"),
        ({**body(), "outputs": [{"name": "last", "parameters": {"classification": 2}}]}, "labels are not given here"),
        (body(parameters={"shared_memory_region": "a"}, data=None), "memory is not shared here"),
        ({**body(), "outptus": [{"name": "last"}]}, "unknown field `outptus`"),
        (body(paramters={}), "unknown field `paramters`"),
        ([], "the body does not fit"),
    ],
)  # fmt: skip
def test_request_that_cannot_be_computed_gives_the_reason(server, given, message):
    with server.client() as http:
        answer = http.post("/v2/models/plain/infer", json=given)
    assert answer.status_code == 400
    assert message in answer.json()["error"]


def test_optional_fields_may_be_null(server):
    left_out = {"id": None, "parameters": None, "outputs": None}
    with server.client() as http:
        right = http.post("/v2/models/plain/infer", json=body())
        answer = http.post("/v2/models/plain/infer", json=body(parameters=None) | left_out)
    assert right.status_code == 200
    assert answer.json() == right.json()


@pytest.mark.parametrize("length", ["5", "-1", "x", "99999"])
def test_wrong_length_of_the_json_is_an_error(server, length):
    with server.client() as http:
        answer = http.post(
            "/v2/models/plain/infer",
            content=json.dumps(body()),
            headers={"inference-header-content-length": length},
        )
    assert answer.status_code == 400, answer.text


def test_body_that_decompresses_beyond_the_limit_is_refused(server):
    bomb = zlib.compress(bytes(64 << 20))
    with server.client() as http:
        for content, encoding, status in (
            (bomb, "deflate", 413),
            (gzip.compress(b"{}")[:-4], "gzip", 400),
            (b"nothing", "gzip", 400),
            (b"{}", "br", 415),
        ):
            answer = http.post(
                "/v2/models/plain/infer", content=content, headers={"content-encoding": encoding}
            )
            assert answer.status_code == status, answer.text


def test_sequence_request_for_an_unknown_output_changes_nothing(tmp_path):
    path = series_cell(tmp_path / "sensors.cell")
    with serving(path) as server, server.client() as http:

        def infer(*outputs, binary_data=False, **parameters):
            asked = {
                "inputs": [{"name": "series", "shape": [1, 1, 2], "datatype": "FP32", "data": [20, 5]}],
                "parameters": {"sequence_id": "a", **parameters},
                "outputs": [{"name": name, "parameters": {"binary_data": binary_data}} for name in outputs],
            }
            return http.post("/v2/models/sensors/infer", json=asked)

        assert infer("forecast", "score", sequence_start=True).status_code == 200
        before = http.get("/v1/models/sensors/sessions/a/state").json()
        answer = infer("head")
        assert answer.status_code == 400
        assert answer.json()["error"] == "there is no output 'head'; there is forecast, score."
        assert "binary_data is 'yes'" in infer("score", binary_data="yes").json()["error"]
        assert http.get("/v1/models/sensors/sessions/a/state").json() == before
        assert [each["name"] for each in infer("score").json()["outputs"]] == ["score"]


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"datatype": "FP32"}, "expected integer ids"),
        ({"datatype": "BYTES", "data": ["a"]}, "expected one of BOOL"),
        ({"data": [0, 1, 99]}, "holds 99 at [0, 2]; the ids of text run from 0 to 7."),
        ({"data": [0, -1, 2]}, "holds -1 at [0, 1]; the ids of text run from 0 to 7."),
        ({"data": [None, 1, 2]}, "got null or an object"),
        ({"data": ["a", "b", "c"]}, "got text"),
        ({"data": [True, False, True]}, "got true or false"),
        ({"data": None}, "got none"),
        ({"data": None, "parameters": {"binary_data_size": 12}}, "0 bytes are left"),
        ({"shape": [1, -3]}, "shape"),
        ({"shape": [2**31 - 1, 2**31 - 1]}, "got 3"),
        ({"shape": [10**12, 1]}, "shape"),
        ({"shape": [3]}, "expected shape (B, any), got (3,)"),
        ({"shape": [], "data": [1]}, "length >= 1 - at `$.inputs[0].shape`"),
        ({"shape": [1, 0], "data": []}, "at least one step"),
        ({"name": "x"}, "this model's inputs are ids"),
    ],
    ids=lambda value: str(value)[:40] if isinstance(value, dict) else "",
)
def test_wrong_tensor_is_refused_with_the_reason(server, given, message):
    tensor = {"name": "ids", "shape": [1, 3], "datatype": "INT32", "data": [0, 1, 2]} | given
    with server.client() as http:
        answer = http.post("/v2/models/text/infer", json={"inputs": [tensor]})
    assert answer.status_code == 400
    assert message in answer.json()["error"]


@pytest.mark.parametrize(
    ("number", "message"), [("1e300", "FP32 cannot hold"), ("NaN", "not JSON"), ("1e999", "out of range")]
)
def test_non_numeric_value_is_refused(server, number, message):
    tensor = f'{{"name": "x", "shape": [1, 1, 3], "datatype": "FP32", "data": [0, {number}, 0]}}'
    with server.client() as http:
        answer = http.post("/v2/models/plain/infer", content=f'{{"inputs": [{tensor}]}}')
    assert answer.status_code == 400
    assert message in answer.json()["error"]
