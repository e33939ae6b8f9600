import json
import math

import keras
import numpy as np
import pytest

from cellerate.data.windows.text_windows import TextBatches
from cellerate.errors import TrainingError
from cellerate.layers.engine.gradient_norm import GradientNorm
from cellerate.models.text import build_text_model
from cellerate.training.divergence import (
    is_far,
    made_worse,
    reference_loss,
    remedy,
    why_not_better,
)
from cellerate.training.loop import train
from cellerate.training.optimizers import build_optimizer
from cellerate.training.run import RunOptions, TrainingRun
from cellerate.training.settings import TrainingSettings
from cellerate.training.telemetry.records import read_telemetry

pytestmark = pytest.mark.keras

IDS = np.random.default_rng(3).integers(1, 3, 1200).cumsum().astype(np.int64) % 7


def run(output, **settings):
    return train(
        build_text_model(7, embedding=4, units=6, seed=5),
        TextBatches(IDS[:1000], length=10, batch_size=8, seed=1),
        TrainingRun(
            options=RunOptions(
                output=output,
                training=TrainingSettings(
                    **({"epochs": 2, "learning_rate": 0.01, "log_every": 1} | settings)
                ),
            ),
            loss=keras.losses.SparseCategoricalCrossentropy(from_logits=True),
            validation=TextBatches(IDS[1000:], length=10, batch_size=8, drop_last=False),
            ignorant=math.log(7),
        ),
    )


@pytest.mark.backends
@pytest.mark.parametrize(
    ("settings", "policy"),
    [
        ({"optimizer": "sgd"}, "float32"),
        ({"optimizer": "adam", "clipnorm": 1e-3}, "float32"),
        ({"optimizer": "sgd", "accumulate": 2}, "float32"),
        ({"optimizer": "sgd"}, "mixed_float16"),
    ],
    ids=str,
)
def test_gradient_norm_is_the_mean_before_clipping(settings, policy):
    draw = np.random.default_rng(0)
    x, y = draw.normal(size=(12, 5)).astype("float32"), draw.normal(size=(12, 2)).astype("float32")
    model = keras.Sequential([keras.Input((5,)), keras.layers.Dense(2, name="one")])
    weights, bias = (np.array(one) for one in model.get_weights())
    # So small a rate that the weights stay as they are.
    optimizer = build_optimizer(TrainingSettings(learning_rate=1e-12, **settings), 3, policy)
    norms = GradientNorm(optimizer)
    assert math.isnan(norms.mean())
    model.compile(optimizer, "mse")
    model.fit(x, y, batch_size=4, shuffle=False, verbose=0)
    expected = []
    for first in (0, 4, 8):
        some = slice(first, first + 4)
        error = 2 * (x[some] @ weights + bias - y[some]) / 8
        expected.append(
            math.sqrt((x[some].T @ error).ravel() @ (x[some].T @ error).ravel() + (error.sum(0) ** 2).sum())
        )
    assert norms.mean() == pytest.approx(np.mean(expected), rel=1e-4)
    norms.reset()
    assert math.isnan(norms.mean())


@pytest.mark.backends
def test_gradient_norm_of_each_epoch_is_in_history_and_telemetry(tmp_path):
    result = run(tmp_path / "m.keras")
    found = [record["gradient_norm"] for record in result.history]
    assert len(found) == 2
    assert all(0 < norm < 10 for norm in found)
    rows = read_telemetry(result.folder)
    assert [row["epoch/gradient_norm"] for row in rows if "epoch/gradient_norm" in row] == pytest.approx(
        found
    )
    assert "gradient_norm" in (result.folder / "history.csv").read_text().splitlines()[0]


@pytest.mark.backends
def test_train_with_a_loss_far_above_the_first_step_raises_and_keeps_no_model(tmp_path):
    with pytest.raises(TrainingError) as raised:
        run(tmp_path / "m.keras", optimizer="sgd", learning_rate=5000.0)
    (line,) = (tmp_path / "m.run" / "history.jsonl").read_text().splitlines()
    record = json.loads(line)
    message = str(raised.value)
    assert f"the loss of epoch 1 is {record['loss']:,.4g}; it was 1.9" in message
    assert f"The norm of its gradients is {record['gradient_norm']:,.4g} on average" in message
    assert "Try clipnorm=1 or learning_rate=0.01." in message
    assert record["best"] is False
    assert not (tmp_path / "m.keras").exists()


def test_train_that_hardly_learns_succeeds(tmp_path):
    result = run(tmp_path / "m.keras", learning_rate=1e-9, epochs=1)
    assert result.status == "finished"
    assert result.first_loss == pytest.approx(result.history[0]["loss"], rel=0.05)
    assert reference_loss(result.first_loss, math.log(7)) >= math.log(7)


@pytest.mark.parametrize(
    ("logs", "far"),
    [
        ({"loss": 40.0, "val_loss": 40.0}, True),
        ({"loss": 40.0, "val_loss": 3.0}, False),  # the loss recovered within the epoch
        ({"loss": 0.1, "val_loss": 40.0}, False),  # the validation part is of another kind
        ({"loss": 40.0}, True),
        ({"loss": 25.0, "val_loss": 25.0}, False),
    ],
    ids=str,
)
def test_epoch_is_far_if_training_and_validation_loss_are_far(logs, far):
    assert is_far(logs, 3.0) is far


def test_reference_loss_is_the_larger_known_loss():
    assert reference_loss(None, None) == math.inf
    assert reference_loss(0.001, 1.0) == 1.0
    assert reference_loss(7.0, 1.0) == 7.0


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"optimizer": "sgd", "learning_rate": 5000}, "clipnorm=1 or learning_rate=0.01"),
        ({"learning_rate": 0.001}, "clipnorm=1 or learning_rate=0.0001"),
        ({"learning_rate": 0.5, "global_clipnorm": 1.0}, "learning_rate=0.001"),
    ],
    ids=str,
)
def test_remedy_names_a_usual_learning_rate_or_a_tenth(settings, said):
    assert remedy(TrainingSettings(**settings)) == said


def test_training_made_it_worse_only_if_by_more_than_chance():
    assert not made_worse([], 2.0)
    assert not made_worse([{"loss": 2.1}], 2.0)
    assert made_worse([{"loss": 1.0}, {"loss": 2.3}], 2.0)


def test_why_not_better_distinguishes_harmful_from_short_training():
    history = [{"loss": 3.0, "gradient_norm": 0.25}, {"loss": 9.0, "gradient_norm": 1234.5}]
    said = why_not_better(history, 4.0, TrainingSettings(learning_rate=1.0))
    assert said == (
        "Training made it worse: the loss rose from 4 to 9, and the norm of the gradients was 0.25, 1.23e+03 in the "
        "last 2 epochs. Try clipnorm=1 or learning_rate=0.001."
    )
    said = why_not_better(history[:1], 4.0, TrainingSettings())
    assert said.startswith("It has not learned enough yet: train for longer")
    assert "0.25 in the last epoch" in said
    assert why_not_better([], 4.0, TrainingSettings()) == ""
