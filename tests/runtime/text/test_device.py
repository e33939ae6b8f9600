"""A packed model that generates on the emulated GPU."""

import dataclasses

import numpy as np
import pytest

from cellerate.errors import BackendError, ConfigError, ModelError
from cellerate.kernels.cuda import launch
from cellerate.kernels.decoder.sampling import SamplingRules
from cellerate.program import Node
from cellerate.runtime.cell import Cell, write_cell
from cellerate.runtime.packed import PackedModel, load
from support.kernels import emulated_gpu

PROMPTS = ["abc", "zé☃", "the quick brown fox"]


@pytest.fixture
def gpu(monkeypatch):
    emulated_gpu.replace_driver(monkeypatch)


@pytest.fixture
def models(gpu, text_model, tmp_path):
    """The same file on the CPU and on the GPU."""
    path = tmp_path / "model.cell"
    write_cell(path, text_model.program(), precision="float32", header=text_model.header())
    return load(path), load(path, device="cuda")


def _same(found, expected):
    assert [one.text for one in found] == [one.text for one in expected]
    assert [one.reason for one in found] == [one.reason for one in expected]
    for one, other in zip(found, expected, strict=True):
        np.testing.assert_array_equal(one.ids, other.ids)
        np.testing.assert_allclose(one.log_probabilities, other.log_probabilities, atol=1e-5)


def test_gpu_generates_the_text_of_the_cpu(models):
    cpu, gpu = models
    options = {"max_tokens": 20, "temperature": 0.9, "top_p": 0.9, "repetition_penalty": 1.2, "seed": 3}
    expected = cpu.complete(PROMPTS, **options)
    _same(gpu.complete(PROMPTS, **options), expected)
    stop = expected[0].text[5:8]
    _same(gpu.complete(PROMPTS, stop=[stop], **options), cpu.complete(PROMPTS, stop=[stop], **options))
    assert gpu.generate("abc", **options) == expected[0].text
    rules = SamplingRules(temperature=0)
    pieces = gpu.generate_text("abc", max_tokens=20, rules=rules)
    assert "".join(pieces) == cpu.generate("abc", max_tokens=20, temperature=0)


def test_gpu_scores_and_beams_equal_the_cpu(models):
    cpu, gpu = models
    for found, expected in zip(gpu.score(PROMPTS), cpu.score(PROMPTS), strict=True):
        np.testing.assert_allclose(found.log_probabilities, expected.log_probabilities, atol=1e-5)
    options = {"beams": 3, "max_tokens": 6}
    _same(gpu.beam_search("abc", **options), cpu.beam_search("abc", **options))


def test_a_stepper_keeps_its_state_and_goes_on(models, tmp_path):
    cpu, gpu = models
    stepper, expected = gpu.stepper(2), cpu.stepper(2)
    for one in (stepper, expected):
        one.read(np.array([[1, 2, 3], [4, 5, 6]]), [3, 2])
    stepper.save(tmp_path / "state")
    for one in (stepper, expected):
        one.step([7, 8])
    np.testing.assert_allclose(stepper.logits, expected.logits, atol=1e-4)
    after = stepper.logits
    stepper.restore(tmp_path / "state")
    assert np.abs(stepper.logits - after).max() > 0.1
    np.testing.assert_array_equal(stepper.step([7, 8]), after)
    drawn = [one.draw(5, [SamplingRules(seed=row) for row in range(2)]) for one in (stepper, expected)]
    assert [one.ids.tolist() for one in drawn[0]] == [one.ids.tolist() for one in drawn[1]]


def test_predict_of_a_gpu_model_runs_on_the_cpu(models):
    cpu, gpu = models
    ids = np.array([[1, 2, 3]])
    np.testing.assert_array_equal(gpu.predict(ids), cpu.predict(ids))


@pytest.mark.parametrize("precision", ["bfloat16", "int8", "int4"])
def test_narrow_files_are_computed_in_bfloat16(gpu, packed, precision):
    model = PackedModel(packed(precision).cell, "cuda:0")
    assert (model.precision, model.steps.precision) == (precision, "bfloat16")
    ids = np.random.default_rng(1).integers(0, model.steps.vocabulary_size, (3, 12))
    _, logits = model.steps.read(model.steps.initial_state(3), ids)
    expected = model.predict(ids)[:, -1]
    assert np.sqrt(np.mean((logits - expected) ** 2) / np.mean(expected**2)) < 2.0**-7


def test_a_model_that_only_the_cpu_runs_says_what_is_in_the_way(gpu, text_model):
    program = text_model.program()
    norm = Node("layer_norm", "middle", {"x": 2}, {}, {"epsilon": 1e-3})
    head = dataclasses.replace(program.nodes[3], inputs={"x": 3})
    program = dataclasses.replace(program, nodes=(*program.nodes[:3], norm, head), outputs={"logits": 4})
    model = PackedModel(Cell(program, "float32", text_model.header()), "cuda")
    with pytest.raises(ModelError, match=r"chain\[2\] has the op 'layer_norm'.*device='cpu'"):
        model.generate("abc")
    assert model.predict(np.array([[1, 2]])).shape == (1, 2, 29)


@pytest.mark.parametrize("device", ["gpu", "cuda:", "cuda:-1", "CPU", 0, None])
def test_unknown_device_is_refused(packed, device):
    with pytest.raises(ConfigError, match="'cpu', 'cuda', or 'cuda:N'"):
        PackedModel(packed().cell, device)


def test_missing_gpu_is_refused_when_the_model_is_loaded(packed, monkeypatch):
    monkeypatch.setattr(launch, "why_unavailable", lambda device: "there is none")
    with pytest.raises(BackendError, match=r"'cuda:1'.*there is none.*device='cpu'"):
        PackedModel(packed().cell, "cuda:1")


def test_without_a_driver_the_error_says_so(packed):
    if launch.why_unavailable(0) is None:
        pytest.skip("this machine has a GPU that the kernels run on")
    with pytest.raises(BackendError, match="device='cpu'"):
        PackedModel(packed().cell, "cuda")
