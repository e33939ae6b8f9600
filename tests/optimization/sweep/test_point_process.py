"""A point whose work runs in the process of the test."""

import importlib
from types import SimpleNamespace

import keras
import numpy as np
import pytest

from cellerate.errors import BackendError, ConfigError, DataError

pytestmark = pytest.mark.keras

TASKS = {
    "text": ("t.txt", {"data": {"length": 10, "validation_fraction": 0.25}}),
    "series": ("s.csv", {"data": {"target": ["load"], "window": 6, "horizon": 2}}),
    "embed": ("l.txt", {"data": {"max_length": 12, "validation_fraction": 0.2}}),
}
SMALL = {
    "text": {"units": 6, "embedding": 4},
    "series": {"units": 6},
    "embed": {"units": 6, "embedding": 4, "latent": 3},
}


def opened(made, task, batch_size=8, device="auto", model=None, **training):
    file, parts = TASKS[task]
    own = {
        "data": {**parts["data"], "batch_size": batch_size},
        "architecture": SMALL[task],
        "training": {"learning_rate": 0.01, **training},
    }
    return {"task": task, "paths": [str(made / file)], "model": model, "parts": own, "device": device}


@pytest.fixture
def point_of():
    from cellerate.optimization.sweep.point_process import TrainingPoint

    return TrainingPoint


def mean(judged):
    return np.average(judged["losses"], weights=judged["weights"])


@pytest.mark.parametrize("task", TASKS)
def test_point_learns_and_is_evaluated_at_powers_of_two(made, point_of, task):
    point = point_of(opened(made, task))
    about = point.answer({"kind": "ready"})
    assert (about["batch_size"], about["steps"]) == (8, 0)
    assert about["bits"] == {"text": "bits/character", "series": None, "embed": "bits/character"}[task]
    found = point.answer({"kind": "turn", "with": {"steps": 40}})
    assert [one["steps"] for one in found["judged"]] == [8, 16, 32, 40]
    assert found["steps"] == len(found["times_s"]) == 40
    assert found["seconds"] == pytest.approx(sum(found["times_s"]), abs=1e-4)
    if task != "series":  # a forecaster already starts from a linear map
        assert mean(found["judged"][-1]) < mean(about["judged"][0])
    assert point.answer({"kind": "test"})


@pytest.mark.parametrize("task", TASKS)
def test_validation_batches_are_the_same_for_all_points(made, point_of, task):
    one, other = (
        point_of(opened(made, task, batch_size=rows)).answer({"kind": "ready"})["judged"][0]
        for rows in (4, 16)
    )
    assert one["weights"] == other["weights"]
    # Both have the same seed and are untrained.
    assert one["losses"] == pytest.approx(other["losses"], rel=1e-5)


def test_loss_equals_keras_on_the_validation_part(made, point_of):
    import keras

    point = point_of(opened(made, "text"))
    judged = point._validation
    model = point._model
    total = weights = 0.0
    for x, y, weight in judged.batches:
        logits = model.predict_on_batch(x)
        each = keras.ops.convert_to_numpy(
            keras.losses.sparse_categorical_crossentropy(y, np.asarray(logits), from_logits=True)
        )
        total += float((each * weight.reshape(len(weight), -1)).sum())
        weights += float(np.broadcast_to(weight.reshape(len(weight), -1), each.shape).sum())
    found = judged.losses(model)
    assert np.average([loss for loss, _ in found], weights=[one for _, one in found]) == pytest.approx(
        total / weights
    )


def test_point_restored_from_its_state_continues_unchanged(made, point_of, tmp_path):
    state = str(tmp_path / "state.npz")
    whole = point_of(opened(made, "text"))
    whole.answer({"kind": "turn", "with": {"steps": 6}})
    in_one = whole.answer({"kind": "turn", "with": {"steps": 5}})

    first = point_of(opened(made, "text"))
    first.answer({"kind": "turn", "with": {"steps": 6, "state": state}})
    second = point_of(opened(made, "text"))
    about = second.answer({"kind": "ready", "with": {"state": state}})
    assert (about["steps"], about["judged"]) == (6, [])
    after = second.answer({"kind": "turn", "with": {"steps": 5}})
    assert [one["steps"] for one in after["judged"]] == [one["steps"] for one in in_one["judged"]] == [8, 11]
    assert after["judged"][-1]["losses"] == pytest.approx(in_one["judged"][-1]["losses"], rel=1e-4)


def test_points_of_a_trained_model_start_from_its_weights(made, point_of):
    fresh = point_of(opened(made, "text")).answer({"kind": "ready"})
    trained = point_of(opened(made, "text", model=str(made / "text.keras"))).answer({"kind": "ready"})
    assert trained["weights"] != fresh["weights"]


def test_stock_keras_point_is_not_accelerated(made, point_of):
    point = point_of(opened(made, "text", implementation="keras"))
    assert not any("cellerate" in type(layer).__module__ for layer in point._model._flatten_layers())
    assert point.answer({"kind": "turn", "with": {"steps": 2}})["steps"] == 2


def test_small_held_out_part_uses_small_batches_to_get_an_interval(made, point_of):
    asked = opened(made, "series")
    asked["parts"]["data"] |= {"train_fraction": 0.8, "validation_fraction": 0.1}
    (judged,) = point_of(asked).answer({"kind": "ready"})["judged"]
    assert len(judged["losses"]) >= 8
    assert max(judged["weights"]) < 32


def test_missing_device_is_refused(made, point_of):
    with pytest.raises(BackendError, match="should train on the gpu"):
        point_of(opened(made, "text", device="gpu"))
    assert point_of(opened(made, "text", device="cpu"))


@pytest.mark.backends
def test_gpu_memory_comes_from_the_framework_and_is_none_on_the_cpu(made, point_of, monkeypatch):
    point = point_of(opened(made, "text"))
    turn = {"kind": "turn", "with": {"steps": 1}}
    assert point.answer(turn)["peak_gpu_memory_bytes"] is None
    bridge = importlib.import_module(f"cellerate.bridges.{keras.config.backend()}")
    monkeypatch.setattr(bridge, "gpu_available", lambda: True)
    match keras.config.backend():
        case "jax":
            gpu = SimpleNamespace(memory_stats=lambda: {"bytes_in_use": 5, "peak_bytes_in_use": 7})
            monkeypatch.setattr(bridge.jax, "local_devices", lambda: [gpu])
        case "torch":
            monkeypatch.setattr(bridge.torch.cuda, "max_memory_allocated", lambda: 7)
        case _:
            facts = {"GPU:0": {"current": 5, "peak": 7}}
            monkeypatch.setattr(bridge.tf.config.experimental, "get_memory_info", facts.__getitem__)
    assert bridge.peak_gpu_memory_bytes() == 7


def test_data_without_a_held_out_part_are_refused(made, point_of):
    asked = opened(made, "text")
    asked["parts"]["data"]["validation_fraction"] = 0.0
    with pytest.raises(DataError, match="validation_fraction"):
        point_of(asked)


def test_settings_that_the_task_refuses_are_refused(made, point_of):
    asked = opened(made, "series")
    del asked["parts"]["data"]["target"]
    with pytest.raises(ConfigError, match="no target is named"):
        point_of(asked)


def test_windows_of_different_lengths_are_evaluated_on_the_same_stretches(made, point_of):
    def judged(task, **data):
        asked = opened(made, task)
        asked["parts"]["data"] |= data
        return point_of(asked)._validation.batches

    short, long = judged("series", window=4), judged("series", window=12)
    assert len(short) == len(long)
    for (_, one, *_), (_, other, *_) in zip(short, long, strict=True):
        np.testing.assert_allclose(one, other)
    short, long = judged("text", length=5), judged("text", length=10)
    items = [sum(np.prod(y.shape) * weight.mean() for _, y, weight in one) for one in (short, long)]
    assert items[0] == pytest.approx(items[1], rel=0.1)
