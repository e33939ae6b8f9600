"""The case `latency`: every contestant computes the same step, and its table says who stands where."""

from typing import Any

import numpy as np
import pytest
from onnx import load_model, numpy_helper

from benchmarks.generation import onnx
from benchmarks.inference import latency, models, stacks, steppers
from benchmarks.precisions import PRECISIONS
from benchmarks.tables import by_case, standings
from cellerate.kernels import native

SMALL = stacks.Stack(2, 24)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A folder with a small stack, packed."""
    made = tmp_path_factory.mktemp("stack")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(stacks, "STACKS", {SMALL.name: SMALL})
        stacks.build(made, PRECISIONS)
    return made


@pytest.fixture
def gradients_back():
    """torch's gradients as they were: a contestant switches them off for all of its process."""
    import torch

    before = torch.is_grad_enabled()
    yield
    torch.set_grad_enabled(before)


@pytest.mark.keras
# torch says so of its only quantisation of an LSTM.
@pytest.mark.filterwarnings("ignore:torch.ao.quantization is deprecated:DeprecationWarning")
@pytest.mark.filterwarnings("ignore:torch.quantize_per_tensor:UserWarning")
@pytest.mark.parametrize("name", ["cellerate", "onnxruntime", "torch"])
def test_contestant_after_all_steps_gives_the_output_of_float64(folder, gradients_back, name):
    truth, inputs = models.truth_of(SMALL.model)[0], stacks.inputs_of(SMALL)
    checked = 0
    for precision, ways in steppers.CONTESTANTS[name](SMALL, folder).items():
        for way, start in ways.items():
            if "compile" in way:
                continue
            step = start()
            made: Any = None
            for row in inputs:
                made = np.array(step(np.ascontiguousarray(row[None])), np.float64)
            error = np.linalg.norm(made - truth) / np.linalg.norm(truth)
            assert error <= latency.TOLERANCES[precision], (precision, way)
            assert error > 0
            checked += 1
    assert checked >= 4


@pytest.mark.parametrize("described, largest", [("Intel, AVX-512 with VNNI", 127), ("AMD Zen 3, AVX2", 64)])
def test_weights_of_onnxruntime_have_7_bits_where_8_would_overflow(tmp_path, monkeypatch, described, largest):
    monkeypatch.setattr(onnx, "describe", lambda: described)
    monkeypatch.setattr("platform.machine", lambda: "x86_64")
    small = onnx.quantized(steppers.onnx_file(SMALL, tmp_path), tmp_path / "small.onnx")
    arrays = (numpy_helper.to_array(each) for each in load_model(small).graph.initializer)
    assert max(np.abs(each.astype(int)).max() for each in arrays if each.dtype == np.int8) == largest


@pytest.mark.keras
def test_native_times_are_of_as_many_steps_as_asked(folder, monkeypatch):
    monkeypatch.setattr(native, "measure_read", lambda size, threads: threads * 1e10)
    found = latency._native(SMALL, folder, 7)
    assert {precision: len(one["seconds"]) for precision, one in found.items()} == dict.fromkeys(
        PRECISIONS, 7
    )
    assert found["float32"]["weight_bytes"] == 4 * (2 * 2 * 24 * 96 + 24 * 32)
    assert found["int8"]["weight_bytes"] * 4 == found["float32"]["weight_bytes"]
    assert found["int8"]["reading_s"] == pytest.approx(9984 / (native.num_threads() * 1e10))


def times(median: float) -> dict[str, float]:
    return {"median_s": median, "p99_s": 2 * median, "p99.9_s": 3 * median}


def result() -> dict[str, Any]:
    """A record in which ours takes 4 µs, and 5 beside a busy process; others two and three times as long."""
    records = [
        {
            "contestant": name,
            "precision": "float32",
            "quiet": times(factor * 4e-6),
            "busy": times(factor * 5e-6),
        }
        for name, factor in (("cellerate", 1), ("litert", 3), ("onnxruntime", 2))
    ]
    alone = [
        {"contestant": "cellerate", "precision": name, "quiet": times(1e-6), "busy": times(1e-6)}
        for name in ("bfloat16", "int8")
    ]
    native = {precision: {**times(2e-6), "reading_s": 5e-7} for precision in PRECISIONS}
    return {
        "published": stacks.PUBLISHED,
        "stacks": [{"stack": "2x128", "records": records + alone, "native": native}],
    }


def test_table_has_the_best_other_one_and_the_share_of_the_limit():
    _, float32, bfloat16, _ = by_case.latency(result())
    assert float32 == [
        "2x128, float32",
        "4, 8, 12 µs",
        "5, 10, 15 µs",
        "ONNX Runtime 8, 16 µs: 2.00x",
        "ONNX Runtime 10, 20 µs: 2.00x",
        "2 µs",
        "0.5 µs (25 %)",
    ]
    assert bfloat16[3:5] == ["", ""]


def test_worst_of_latency_counts_the_busy_machine_too():
    found = result()
    found["stacks"][0]["records"][1]["busy"] = times(4e-6)
    worst = standings.worst("latency", found)
    assert worst is not None
    assert (worst.opponent.who, worst.contest.what) == ("LiteRT", "a step of 2x128 beside a busy process")
    assert worst.ratio == pytest.approx(0.8)


def test_published_figures_name_their_source():
    sentence = by_case.published_steps(result())
    assert "https://vollo.myrtle.ai/25.1.2/benchmark-lstm.html" in sentence
    assert "IA-840F 2x128 1.9, 2 µs" in sentence
