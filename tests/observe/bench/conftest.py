"""Records of `bench`, made up: no test that takes one measures anything."""

import dataclasses

import numpy as np
import pytest

from cellerate.observe.bench.record import SCHEMA, Entry, LeftOut, Load, Record, Turn, summarised

# The jobs of a record: case, work, contestant, title, whether ours, precision, call, seconds a call, turns a session.
JOBS = (
    ("train", "training", "cellerate-jax", "Cellerate on jax", True, "float32", "a batch of fit", 0.045, 6),
    ("train", "training", "keras-jax", "Keras on jax", False, "float32", "a batch of fit", 0.135, 3),
    ("train", "training", "torch", "torch.nn.LSTM", False, "float32", "a step", 0.062, 3),
    ("infer", "1 row", "cellerate", "Cellerate", True, "float32", "predict", 0.0004, 12),
    ("infer", "1 row", "cellerate", "Cellerate", True, "int8", "predict", 0.0002, 12),
    ("infer", "1 row", "onnxruntime", "ONNX Runtime", False, "float32", "a call", 0.0008, 3),
    ("infer", "1 row", "onnxruntime", "ONNX Runtime", False, "int8", "a call", 0.0006, 3),
    ("generate", "one stream", "cellerate", "Cellerate", True, "int8", "generate, 500 in a call", 0.0016, 12),
    ("generate", "one stream", "cellerate", "Cellerate", True, "int8", "a call a character", 0.00003, 12),
    ("generate", "one stream", "litert", "LiteRT", False, "int8", "a call a character", 0.00002, 3),
)
# Characters of a call.
ITEMS = {"generate, 500 in a call": 500, "a call a character": 1}


@dataclasses.dataclass(frozen=True)
class Noise:
    """What a machine with neighbours does to times, each as a share.

    Attributes:
        drift: How much faster or slower the whole machine is from run to run.
        wander: How far it drifts from turn to turn.
        start: How much processes differ from each other, with heavy tails.
        memory: How much turns on other memory differ.
        bursts: The share of turns in which a neighbour works; it takes a quarter on average.
        call: What calls take beyond the fastest; every tenth takes half as much again.
    """

    drift: float = 0.05
    wander: float = 0.01
    start: float = 0.015
    memory: float = 0.015
    bursts: float = 0.2
    call: float = 0.01


def noisy_turns(random, seconds, noise, drift, *, sessions, turns):
    """The turns of a job under noise."""
    found = []
    for session in range(sessions):
        start = noise.start * random.standard_t(4) / 2**0.5
        for turn in range(turns):
            drift += noise.wander * random.standard_normal()
            shift = drift + start + noise.memory * random.standard_normal()
            if random.random() < noise.bursts:
                shift += random.exponential(0.25)
            calls = random.gamma(1.5, noise.call, 12) + (random.random(12) < 0.1) * random.exponential(
                0.5, 12
            )
            yardstick = 3e-4 * np.exp(drift + 0.002 * random.standard_normal())
            found.append(Turn(session, turn, yardstick, tuple((seconds * np.exp(shift + calls)).tolist())))
    return tuple(found)


@pytest.fixture
def made():
    """Makes a record: of a seed, with the times of some cases and titles multiplied, under a `Noise`."""

    def make(seed=0, *, slower=(), noise=None, sessions=5, only_ours=False, **changes):
        noise, random = Noise(**noise or {}), np.random.default_rng(seed)
        factors, entries = dict(slower), []
        drift = noise.drift * random.standard_normal()
        for case, work, name, title, ours, precision, call, seconds, turns in JOBS:
            if only_ours and not ours:
                continue
            took = noisy_turns(
                random,
                seconds * factors.get((case, title), 1.0),
                noise,
                drift,
                sessions=sessions,
                turns=turns,
            )
            median_s, p20_s, p80_s = summarised(took)
            entries.append(
                Entry(
                    case, work, name, title, ours, precision, call, "as it comes", ITEMS.get(call, 100), 1e-6, 1e-4,
                    median_s, p20_s, p80_s, 0.5, took,
                )
            )  # fmt: skip
        record = Record(
            schema=SCHEMA,
            run=f"run {seed}",
            started="2026-11-24T02:57:00+00:00",
            seconds=300.0,
            command="cellerate bench",
            quick=False,
            machine={"cpu": "one", "processor": "fast, AVX-512", "cores": 2, "memory_bytes": 1 << 34},
            versions={"cellerate": "0.1.0", "keras": "3.15.1"},
            sizes={
                "vocabulary": 96,
                "embedding": 128,
                "units": 256,
                "steps": 100,
                "batch": 64,
                "rows": (1, 32),
            },
            sessions=sessions,
            rounds=3,
            load=Load(0.01, 0.02, 0.0),
            peaks={"float32": 2e11},
            entries=tuple(entries),
            left_out=(LeftOut("infer", "OpenVINO", False, "", False, "not installed: 'openvino'"),),
        )
        return dataclasses.replace(record, **changes)

    return make
