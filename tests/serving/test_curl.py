"""The routes by curl: the commands of docs/guide/serving.md, and curl's own ways to send a body."""

import gzip
import json
import re
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from cellerate.runtime.packed import load
from support.servers import Server, plain_cell, series_cell, serving, text_cell

DOCS = Path(__file__).resolve().parents[2] / "docs" / "guide" / "serving.md"
pytestmark = pytest.mark.skipif(shutil.which("curl") is None, reason="curl is not installed here")
KEY = "open sesame"


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    folder = tmp_path_factory.mktemp("curl")
    makers = {"book": text_cell, "pumps": series_cell, "plain": plain_cell}
    return {name: make(folder / f"{name}.cell") for name, make in makers.items()}


@pytest.fixture(scope="module")
def server(models: dict[str, Path]) -> Iterator[Server]:
    with serving(*models.values(), CELLERATE_API_KEYS=KEY) as server:
        yield server


def typed(server: Server, command: str, folder: Path) -> str:
    """The output of a shell command, which must exit with 0."""
    command = command.replace("localhost:8000", f"127.0.0.1:{server.port}")
    command = command.replace("curl ", f"curl -sS --noproxy '*' -H 'Authorization: Bearer {KEY}' ")
    done = subprocess.run(["bash", "-c", command], capture_output=True, text=True, timeout=60, cwd=folder)
    assert (done.returncode, done.stderr) == (0, ""), command
    return done.stdout


def given(server: Server, command: str, folder: Path) -> Any:
    """The same, as JSON."""
    found = json.loads(typed(server, command, folder))
    assert "error" not in found, found
    return found


def test_curl_commands_of_the_manual_run(server: Server, models: dict[str, Path], tmp_path: Path) -> None:
    commands = [line for line in DOCS.read_text().splitlines() if line.startswith("curl ")]
    pushes = [command for command in commands if "/push" in command]
    assert len(pushes) == 2
    for command in pushes:
        assert "outputs" in given(server, command, tmp_path)
    (forecast,) = [command for command in commands if "/forecast" in command]
    rows = [[20.0 + n, 5.0] for n in range(6)]
    command = re.sub(r"'\{.*\}'", f"'{json.dumps({'rows': rows})}'", forecast).replace("/ett/", "/pumps/")
    found = given(server, command, tmp_path)["forecast"]
    np.testing.assert_allclose(found, load(models["pumps"]).forecast(np.array(rows)), rtol=1e-6)


def test_curl_gets_a_text_at_once_or_streamed(
    server: Server, models: dict[str, Path], tmp_path: Path
) -> None:
    body = {"model": "book", "prompt": "abc", "max_tokens": 60, "seed": 3}
    (tmp_path / "ask.json").write_text(json.dumps(body))
    right = load(models["book"]).generate("abc", max_tokens=60, seed=3)
    asked = "curl localhost:8000/v1/completions -H 'Content-Type: application/json'"
    assert given(server, f"{asked} -d @ask.json", tmp_path)["choices"][0]["text"] == right
    assert given(server, f"{asked} -d @ask.json --http1.0", tmp_path)["choices"][0]["text"] == right
    (tmp_path / "ask.json").write_text(json.dumps(body | {"stream": True}))
    lines = typed(server, f"{asked} -N -d @ask.json", tmp_path).split("\n\n")
    assert lines[-2:] == ["data: [DONE]", ""]
    parts = [json.loads(line.removeprefix("data: "))["choices"][0]["text"] for line in lines[:-2]]
    assert "".join(parts) == right


def test_curl_sends_gzip_and_a_large_body_after_expect_100(
    server: Server, models: dict[str, Path], tmp_path: Path
) -> None:
    x = np.random.default_rng(0).normal(size=(1, 20_000, 3)).astype(np.float32)
    inputs = [{"name": "x", "shape": x.shape, "datatype": "FP32", "data": x.ravel().tolist()}]
    body = json.dumps({"inputs": inputs}).encode()
    (tmp_path / "x.json").write_bytes(body)
    (tmp_path / "x.json.gz").write_bytes(gzip.compress(body))
    asked = "curl localhost:8000/v2/models/plain/infer"
    right = load(models["plain"]).predict(x, ["last"]).ravel()
    # Above one megabyte curl waits for "100 Continue" before it sends the body.
    for command in (
        f"{asked} -H 'Expect: 100-continue' --data-binary @x.json",
        f"{asked} --compressed -H 'Content-Encoding: gzip' --data-binary @x.json.gz",
        f"{asked} -H 'Transfer-Encoding: chunked' --data-binary @x.json",
    ):
        outputs = {each["name"]: each["data"] for each in given(server, command, tmp_path)["outputs"]}
        np.testing.assert_allclose(outputs["last"], right, rtol=1e-5)


def test_curl_pushes_lines_and_sends_a_key_as_password(server: Server, tmp_path: Path) -> None:
    lines = [{"id": f"s{n}", "inputs": [[n, 1.0, 2.0]], "begin": True} for n in range(5)]
    (tmp_path / "lines").write_text("\n".join(map(json.dumps, lines)))
    found = typed(server, "curl localhost:8000/v1/models/plain/push --data-binary @lines", tmp_path)
    assert [json.loads(line)["id"] for line in found.splitlines()] == [f"s{n}" for n in range(5)]
    plain = f"curl -sS --noproxy '*' -o /dev/null -w '%{{http_code}}' 127.0.0.1:{server.port}/v1/models"
    for more, status in (("", "401"), (f"-u ':{KEY}'", "200"), ("-u ':wrong'", "401")):
        done = subprocess.run(["bash", "-c", f"{plain} {more}"], capture_output=True, text=True, timeout=60)
        assert done.stdout == status
