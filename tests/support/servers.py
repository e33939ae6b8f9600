"""Servers of small packed models, each in its own process as users run it."""

import contextlib
import os
import re
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx2
import numpy as np

from cellerate.data.text.lines import LineVocabulary
from cellerate.data.tokenizers.tokenizer import CharacterTokenizer
from cellerate.data.windows.scaler import Scaler
from cellerate.runtime.cell import write_cell
from support.graphs import Graph, draw
from support.packed_forecaster import OPTIONS
from support.runtime.programs import windows

CHARACTERS = "abcdefgh"
LONGEST = 12
_PROGRAM = "from cellerate.cli.start import start; start()"
SCALER = Scaler(["load", "wind"], [20.0, 5.0], [4.0, 0.5])


def text_cell(path: Path, units: int = 16, seed: int = 0) -> Path:
    """A text model of eight characters."""
    graph = Graph()
    ids = graph.input("ids", -1, dtype="int32")
    rows = graph.add("embedding", "rows", {"ids": ids}, {"embeddings": draw(len(CHARACTERS), 5, seed=seed)})
    head = graph.dense(graph.lstm(rows, "lstm", 5, units), "logits", units, len(CHARACTERS))
    tokenizer = CharacterTokenizer(CHARACTERS).to_config()
    return _written(path, graph.program(logits=head), "text", {"tokenizer": tokenizer})


def convolved_cell(path: Path) -> Path:
    """A text model of eight characters with a causal convolution."""
    graph = Graph()
    ids = graph.input("ids", -1, dtype="int32")
    rows = graph.add("embedding", "rows", {"ids": ids}, {"embeddings": draw(len(CHARACTERS), 5)})
    gathered = windows(graph, "windows", rows, 3, "causal", features=5)
    conv = graph.dense(gathered, "conv", 15, 6, "relu")
    head = graph.dense(graph.lstm(conv, "lstm", 6, 16), "logits", 16, len(CHARACTERS))
    tokenizer = CharacterTokenizer(CHARACTERS).to_config()
    return _written(path, graph.program(logits=head), "text", {"tokenizer": tokenizer})


def series_cell(path: Path, *, quantiles: tuple[float, ...] = ()) -> Path:
    """A forecaster of the columns load and wind, from 6 rows for the next 3."""
    graph = Graph()
    rows = graph.input("series", 6, 2)
    last = graph.lstm(rows, "lstm", 2, 10, return_sequences=False)
    shape = (3, 2, *([len(quantiles)] if quantiles else []))
    head = graph.dense(last, "head", 10, int(np.prod(shape)))
    made = graph.add("reshape", "forecast", {"x": head}, shape=shape)
    options = OPTIONS | {"target": ["load", "wind"]}
    payload = {"options": options, "scaler": SCALER.to_config(), "quantiles": list(quantiles)}
    return _written(path, graph.program(forecast=made), "series", payload)


def window_cell(path: Path, *, quantiles: tuple[float, ...] = ()) -> Path:
    """A forecaster like that of `series_cell`, without recurrence: a linear map of the whole window."""
    graph = Graph()
    rows = graph.add("reshape", "flat", {"x": graph.input("series", 6, 2)}, shape=(12,))
    shape = (3, 2, *([len(quantiles)] if quantiles else []))
    head = graph.dense(rows, "head", 12, int(np.prod(shape)))
    made = graph.add("reshape", "forecast", {"x": head}, shape=shape)
    payload = {
        "options": OPTIONS | {"target": ["load", "wind"]},
        "scaler": SCALER.to_config(),
        "quantiles": list(quantiles),
    }
    return _written(path, graph.program(forecast=made), "series", payload)


def plain_cell(path: Path) -> Path:
    """A model without a task: (B, T, 3) numbers to a sequence of 4 and a last output of 7."""
    graph = Graph()
    x = graph.input("x", -1, 3)
    every = graph.lstm(x, "lower", 3, 7)
    last = graph.lstm(every, "upper", 7, 7, return_sequences=False)
    return _written(path, graph.program(each=graph.dense(every, "head", 7, 4), last=last), None, None)


def embed_cell(path: Path) -> Path:
    """A line model."""
    vocabulary = LineVocabulary(CHARACTERS)
    graph = Graph()
    ids = graph.input("source", -1, dtype="int32")
    rows = graph.add("embedding", "rows", {"ids": ids}, {"embeddings": draw(vocabulary.size, 5)})
    vector = graph.lstm(rows, "lstm", 5, 6, return_sequences=False)
    payload = {"vocabulary": {"characters": CHARACTERS}, "max_length": LONGEST, "padding": "right"}
    return _written(path, graph.program(vector=vector), "embed", payload)


def _written(path: Path, program: Any, task: str | None, payload: Any) -> Path:
    header = {} if task is None else {"task": task, "payload": payload}
    write_cell(path, program, header=header)
    return path


class Server:
    """A running server.

    Attributes:
        address: Where it listens.
        process: Its process.
        lines: The lines that it has written to stderr so far.
    """

    def __init__(self, process: "subprocess.Popen[str]") -> None:
        self.process, self.address, self.lines = process, "", [""]
        self._listening = threading.Event()
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()
        if not self._listening.wait(60):
            process.kill()
            raise AssertionError("the server did not start:\n" + "".join(self.lines))

    def _read(self) -> None:
        assert self.process.stderr is not None
        for line in self.process.stderr:
            self.lines.append(line)
            if found := re.search(r"serving at (http\S+)", line):
                self.address = found[1]
                self._listening.set()
        self._listening.set()

    @property
    def port(self) -> int:
        return int(self.address.rpartition(":")[2])

    def client(self, **options: Any) -> httpx2.Client:
        """A client of this server that ignores the environment, such as a proxy."""
        return httpx2.Client(base_url=self.address, trust_env=False, timeout=60, **options)

    def stop(self, sent: signal.Signals = signal.SIGTERM) -> int:
        """Signal the server to end, wait, and return its exit code."""
        self.process.send_signal(sent)
        self.process.wait(60)
        self.close()
        return self.process.returncode

    def close(self) -> None:
        """Read the rest of the log of a server that has ended."""
        self._reader.join(60)
        assert self.process.stderr is not None
        self.process.stderr.close()

    def until(self, text: str) -> None:
        """Wait until a line of the log contains a text."""
        end = time.monotonic() + 30
        while not any(text in line for line in self.lines):
            assert time.monotonic() < end, "".join(self.lines)
            time.sleep(0.01)


@contextlib.contextmanager
def serving(*models: Path | str, options: tuple[str, ...] = (), **environment: str) -> Iterator[Server]:
    """Run `cellerate serve`, end it afterwards, and fail if it wrote a traceback."""
    command = [sys.executable, "-c", _PROGRAM, "serve", *map(str, models), "--port", "0"]
    if "--state" not in options:
        command.append("--no-state")
    process = subprocess.Popen(
        [*command, *options],
        stderr=subprocess.PIPE,
        stdout=subprocess.DEVNULL,
        text=True,
        env=os.environ | environment,
    )
    server = Server(process)
    try:
        yield server
    finally:
        if process.poll() is None:
            server.stop()
        server.close()
        assert not any("Traceback" in line for line in server.lines), "".join(server.lines)


def refusal(*models: Path | str, options: tuple[str, ...] = (), **environment: str) -> str:
    """Run `cellerate serve` where it cannot serve, and return its error."""
    command = [sys.executable, "-c", _PROGRAM, "serve", *map(str, models), "--port", "0", *options]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, env=os.environ | environment)
    assert done.returncode > 0, done.stderr
    assert "Traceback" not in done.stderr
    return done.stderr
