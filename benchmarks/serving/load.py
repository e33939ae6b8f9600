"""The server under load, with its client on the same cores: pushes, streamed texts, and overload.

- Sessions: 10,000 streams of a forecaster of two layers of 64 in int8, a row a second each, beside 100,000 idle ones.
  A request carries the pushes of 100 streams, as a gateway of sensors would send them; its time counts from the
  moment when it was due.
- Texts: 256 streams of one layer of 512 in int8. Some are compared with the texts that the model draws alone.
- The same texts, fewer, through a server that people write around Keras: `predict_on_batch` a character.
- 1,000 streams open at once.
- Requests for texts at random moments, twice as often as they can be drawn: the time until the surplus is refused, the
check of the drawn texts, and the time until the server has recovered.
"""

import contextlib
import json
import os
import re
import subprocess
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks import ROOT
from benchmarks.processes import cellerate, program
from cellerate.program import Node, Program
from cellerate.runtime.cell import narrowed, write_cell
from cellerate.runtime.packed import load

FEATURES, UNITS, TEXT_UNITS = 7, 64, 512
PROMPT = "the "
NORMAL_S = 0.1
"""The longest time to the first characters of a text on a server without overload."""


def run(*, quick: bool) -> dict[str, Any]:
    """Run all five measurements.

    Args:
        quick: Run fewer and shorter ones, to check that it works.
    """
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        streams_cell(folder / "streams.cell")
        _built(folder)
        (folder / "int8.cell").rename(folder / "text.cell")
        return {
            "sessions": sessions(folder, quick=quick),
            "texts": texts(folder, quick=quick),
            "keras": keras_texts(folder, quick=quick),
            "many": many(folder, quick=quick),
            "overload": overload(folder, quick=quick),
        }


def streams_cell(path: Path) -> None:
    """A forecaster of two LSTMs in int8, with random weights, which do not affect the speed."""
    draw = np.random.default_rng(0)

    def lstm(name: str, x: int, inputs: int, *, sequences: bool) -> Node:
        arrays = {
            "kernel": draw.normal(size=(inputs, 4 * UNITS)) / np.sqrt(inputs),
            "recurrent_kernel": draw.normal(size=(UNITS, 4 * UNITS)) / np.sqrt(UNITS),
            "bias": np.zeros(4 * UNITS),
        }
        options: dict[str, Any] = {
            "activation": "tanh",
            "recurrent_activation": "sigmoid",
            "masked_output": "previous_output",
            "go_backwards": False,
            "return_sequences": sequences,
        }
        return Node(
            "lstm", name, {"x": x}, {key: each.astype(np.float32) for key, each in arrays.items()}, options
        )

    head = {
        "kernel": draw.normal(size=(UNITS, 1)).astype(np.float32),
        "bias": np.zeros(1, np.float32),
    }
    nodes = (
        Node("input", "x", options={"shape": (-1, -1, FEATURES), "dtype": "float32"}),
        lstm("lower", 0, FEATURES, sequences=True),
        lstm("upper", 1, UNITS, sequences=False),
        Node("dense", "next", {"x": 2}, head, {"activation": "linear"}),
    )
    write_cell(path, narrowed(Program(nodes, {"next": 3}), "int8"), precision="int8")


def sessions(folder: Path, *, quick: bool) -> dict[str, Any]:
    """See the module."""
    idle, streams = (2000, 1000) if quick else (100_000, 10_000)
    with server(folder, "streams.cell") as port:
        found = client(
            kind="sessions",
            port=port,
            idle=idle,
            connections=100,
            streams=streams,
            features=FEATURES,
            seconds=3 if quick else 60,
        )
    latencies = found.pop("latencies_s")
    if found["failed"]:
        raise SystemExit(f"{found['failed']} of {found['pushes']} pushes failed")
    return found | {"idle": idle, "streams": streams, **quantiles(latencies)}


def texts(folder: Path, *, quick: bool, streams: int = 256) -> dict[str, Any]:
    """See the module."""
    with server(folder, "text.cell") as port:
        asked: dict[str, Any] = {"kind": "texts", "port": port, "streams": streams, "prompt": PROMPT}
        client(**asked, tokens=200, rounds=1)  # warms up
        found = client(**asked, tokens=400 if quick else 2000, rounds=1 if quick else 4)
    return {
        "streams": streams,
        "characters_per_s": found["characters"] / found["seconds"],
        "characters_per_event": found["characters"] / found["events"],
        **_checked(folder, found),
    }


def keras_texts(folder: Path, *, quick: bool) -> dict[str, Any]:
    """The same requests to a server around Keras's `predict_on_batch`, which answers them one by one."""
    results = {}
    for backend in ("jax",) if quick else ("jax", "tensorflow", "torch"):
        command = program("serving.peer", str(folder / "model.keras"))
        with running(command, {"KERAS_BACKEND": backend}) as port:
            asked: dict[str, Any] = {"kind": "texts", "port": port, "prompt": PROMPT}
            client(**asked, streams=1, tokens=20, rounds=1)
            found = client(**asked, streams=16, tokens=50 if quick else 200, rounds=1)
        results[backend] = found["characters"] / found["seconds"]
    return {"characters_per_s": results}


def many(folder: Path, *, quick: bool, streams: int = 1000) -> dict[str, Any]:
    """Many streams open at once, all from the same moment."""
    streams = 100 if quick else streams
    with server(folder, "text.cell") as port:
        asked: dict[str, Any] = {"kind": "texts", "port": port, "prompt": PROMPT}
        client(**asked, streams=100, tokens=200, rounds=1)
        found = client(**asked, streams=streams, tokens=1000, rounds=1)
    return {"streams": streams, **_checked(folder, found)}


def overload(folder: Path, *, quick: bool) -> dict[str, Any]:
    """Requests for texts at random moments, twice as often as they can be drawn; then single ones."""
    places, tokens = 256, 500
    with server(folder, "text.cell", "--sequences", str(places)) as port:
        asked: dict[str, Any] = {"port": port, "tokens": tokens, "prompt": PROMPT}
        client(kind="texts", streams=places, rounds=1, **asked)
        peak = client(kind="texts", streams=places, rounds=1 if quick else 5, **asked)
        rate = peak["texts"] / peak["seconds"]
        found = client(kind="arrivals", rate=2 * rate, seconds=3 if quick else 30, after_s=10, **asked)
    if found["texts"] + len(found["refused_s"]) != found["requests"]:
        raise SystemExit("requests were neither answered nor refused")
    slow = [when + (first or 0.0) for when, first in found["probes"] if first is None or first > NORMAL_S]
    return {
        "places": places,
        "characters": tokens,
        "peak_texts_per_s": rate,
        "asked_texts_per_s": 2 * rate,
        "requests": found["requests"],
        "refused": len(found["refused_s"]),
        "refusal": quantiles(found["refused_s"]),
        "normal_after_s": max(slow, default=0.0),
        **_checked(folder, found | {"refused_s": []}),
    }


def _checked(folder: Path, found: dict[str, Any]) -> dict[str, Any]:
    """The times of texts, after a check that none was refused and that some equal the texts drawn alone."""
    model = load(folder / "text.cell")
    for seed, text in found["some"].items():
        if text != model.generate(PROMPT, max_tokens=len(text), seed=int(seed)) or not text:
            raise SystemExit(f"the text of seed {seed} is not what the model draws alone")
    if found["refused_s"]:
        raise SystemExit(f"{len(found['refused_s'])} texts were refused")
    return {"texts": found["texts"], "first": quantiles(found["first_s"])}


def quantiles(values: list[float]) -> dict[str, float]:
    """The median, 99th percentile and maximum of seconds."""
    if not values:
        return {}
    p50, p99 = np.percentile(values, [50, 99])
    return {"p50_s": float(p50), "p99_s": float(p99), "most_s": max(values)}


def client(**asked: Any) -> dict[str, Any]:
    """Run the client, and return its measurements."""
    command = program("serving.client", json.dumps(asked))
    done = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True, cwd=ROOT)
    found: dict[str, Any] = json.loads(done.stdout)
    return found


def server(folder: Path, cell: str, *options: str) -> "contextlib.AbstractContextManager[int]":
    """Our server, as users run it."""
    command = cellerate("serve", folder / cell, "--port", 0, "--no-access-log", "--state", folder / "state")
    return running([*command, *options], {})


@contextlib.contextmanager
def running(command: list[str], environment: dict[str, str]) -> Iterator[int]:
    """A server in a separate process; yields its port."""
    process = subprocess.Popen(
        command, stderr=subprocess.PIPE, text=True, env=os.environ | environment, cwd=ROOT
    )
    try:
        assert process.stderr is not None
        for line in process.stderr:
            if found := re.search(r"http://[^ ]*:(\d+)", line):
                yield int(found[1])
                break
        else:
            raise SystemExit("a server did not start")
    finally:
        process.terminate()
        process.communicate()


def _built(folder: Path) -> None:
    """The text model, built in a separate process: Keras would otherwise stay in memory beside the server."""
    begin = time.perf_counter()
    subprocess.run(program("generation.model", str(TEXT_UNITS), str(folder)), check=True, cwd=ROOT)
    print(f"built in {time.perf_counter() - begin:.0f} s", flush=True)
