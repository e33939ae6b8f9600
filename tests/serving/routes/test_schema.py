"""The OpenAPI document against the server: schemathesis's requests get documented answers only."""

import subprocess
import sys
from pathlib import Path

import pytest

from support.servers import embed_cell, plain_cell, series_cell, serving, text_cell

pytestmark = pytest.mark.slow
CHECKS = (
    "not_a_server_error,status_code_conformance,content_type_conformance,response_headers_conformance,"
    "response_schema_conformance,unsupported_method"
)


def test_every_answer_is_documented_and_free_of_server_errors(tmp_path: Path) -> None:
    pytest.importorskip(
        "schemathesis", reason="needs the package of the group contract: pip install --group contract"
    )
    makers = {"text": text_cell, "lines": embed_cell, "plain": plain_cell, "series": series_cell}
    models = [make(tmp_path / f"{name}.cell") for name, make in makers.items()]
    with serving(*models, options=("--max-tokens", "50", "--sessions", "50")) as server:
        command = [sys.executable, "-m", "schemathesis.cli", "run", f"{server.address}/openapi.json"]
        # schemathesis cannot write lines of JSON; tests/serving/test_malformed.py sends them.
        command += ["--exclude-path", "/v1/models/{name}/push", "--checks", CHECKS, "--max-examples", "50"]
        done = subprocess.run(command, capture_output=True, text=True, cwd=tmp_path, timeout=600)
    assert done.returncode == 0, done.stdout[-5000:] + done.stderr[-2000:]
    assert "Tested: 33" in done.stdout, done.stdout[-2000:]
