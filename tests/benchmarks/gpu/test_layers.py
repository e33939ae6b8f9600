"""The parts of the GPU suite that train Keras models run to their end where there is no GPU, on the CPU."""

import numpy as np
import pytest

from benchmarks.gpu import figures, layers
from benchmarks.training.race import settings_of

pytestmark = pytest.mark.keras


def test_character_model_has_speeds_and_losses_of_ours_and_of_keras(monkeypatch):
    monkeypatch.setattr(layers, "STEPS", 3)
    monkeypatch.setattr(layers, "ROUND_S", 0.01)
    found = layers.character_model("torch", "float32", units=8, batch=2)
    ours, keras = found["contestants"]
    assert found["error"] is None and found["right"]
    assert (ours["implementation"], keras["implementation"]) == ("auto", "keras")
    assert found["characters_per_s"] == ours["characters_per_s"] > 0
    assert len(ours["losses"]) == len(keras["losses"]) == 3
    assert np.allclose(ours["losses"], keras["losses"], rtol=1e-4)
    assert found["losses_apart"] < 1e-4


def test_keras_on_tensorflow_trains_the_model_that_ours_trains_on_torch(monkeypatch):
    monkeypatch.setattr(layers, "STEPS", 2)
    monkeypatch.setattr(layers, "ROUND_S", 0.01)
    found = layers.beside_tensorflow("relu", "float32", units=8, batch=2)
    ours, theirs = found["contestants"]
    assert found["right"] and [ours["backend"], theirs["backend"]] == ["torch", "tensorflow"]
    # After a step, Keras on TensorFlow has made another one of it: it takes the embedding's gradient for sparse.
    assert ours["losses"][0] == pytest.approx(theirs["losses"][0], rel=1e-5)
    table = figures.beside_tensorflow({"tensorflow": [found]})
    assert table[1][0] == "relu, float32" and all(table[1])


def test_points_of_the_crossover_are_of_the_batch_that_they_name():
    settings = settings_of("torch", 8, "auto", "float32") | {"batch": 1, "variant": "relu", "device": "cpu"}
    held = layers.Held()
    try:
        points = [held.point(settings, batch) for batch in (1, 4)]
    finally:
        held._close()
    assert [point["batch"] for point in points] == [1, 4]
    assert all(point["median_s"] > 0 and point["variant"] == "relu" for point in points)


def test_prepared_parts_have_an_item_a_contestant_and_batch():
    assert len(layers.fit()) == len(layers.FIT_POLICIES) * len(layers.FIT_BACKENDS)
    assert len(layers.tensorflow()) == len(layers.BESIDE_TENSORFLOW)
    assert len(layers.crossover()) == 12 * len(layers.CHART_BATCHES)
