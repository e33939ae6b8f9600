"""A captured training step does what Keras's own does, step for step; a graph on the CPU stands in for CUDA's."""

from collections.abc import Callable
from typing import Any

import keras
import numpy as np
import pytest

if keras.backend.backend() != "torch":
    pytest.skip("torch's own", allow_module_level=True)

import torch
from keras import layers

from cellerate.bridges.torch_capture import CapturedStep

pytestmark = pytest.mark.keras
V, B, T = 12, 4, 6
IDS = np.random.default_rng(0).integers(0, V, (5 * B + 2, T + 1)).astype("int32")
X, Y = IDS[:, :-1], IDS[:, 1:]


class GraphOnTheCpu:
    """What it records leaves no trace until it is replayed, and then goes to the same tensors."""

    made: list["GraphOnTheCpu"]

    def __init__(self, model: keras.Model) -> None:
        metrics = [variable for metric in model.metrics for variable in metric.variables]
        self._variables = [*model.variables, *model.optimizer.variables, *metrics]
        self.replays = 0

    def capture(self, work: Callable[[], Any]) -> Any:
        before = [variable.value.detach().clone() for variable in self._variables]
        try:
            self._work, self._outputs = work, work()
        finally:
            for variable, value in zip(self._variables, before, strict=True):
                variable.value.data.copy_(value)
        for output in self._outputs.values():
            output.fill_(torch.nan)
        return self._outputs

    def replay(self) -> None:
        self.replays += 1
        for name, value in self._work().items():
            self._outputs[name].copy_(value)


def model_of(optimizer: Any = None, *, dropout: float = 0.0, **options: Any) -> keras.Model:
    keras.utils.set_random_seed(0)
    model = keras.Sequential(
        [
            keras.Input((None,), dtype="int32"),
            layers.Embedding(V, 8),
            layers.LSTM(8, return_sequences=True, dropout=dropout, seed=1),
            layers.Dense(V),
        ]
    )
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile(
        optimizer or keras.optimizers.Adam(0.01, clipnorm=1.0), loss, metrics=["accuracy"], **options
    )
    return model


def captured(model: keras.Model) -> tuple[CapturedStep, list[GraphOnTheCpu]]:
    """Puts a captured step into a model."""
    graphs: list[GraphOnTheCpu] = []

    def new_graph() -> GraphOnTheCpu:
        graphs.append(GraphOnTheCpu(model))
        return graphs[-1]

    model.make_train_function()
    step = model.train_function = CapturedStep(model.train_function, "cpu", new_graph)
    return step, graphs


class Steps(keras.callbacks.Callback):
    """Keeps the logs of every step, and changes the learning rate amid them."""

    def __init__(self) -> None:
        super().__init__()
        self.logs: list[dict[str, float]] = []

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        self.logs.append({name: float(value) for name, value in logs.items()})
        if len(self.logs) == 9:
            self.model.optimizer.learning_rate = 0.003


def fit(model: keras.Model, **given: Any) -> list[dict[str, float]]:
    steps = Steps()
    history = model.fit(X, Y, batch_size=B, epochs=3, shuffle=False, verbose=0, callbacks=[steps], **given)
    return [*steps.logs, {name: values[-1] for name, values in history.history.items()}]


@pytest.mark.parametrize(
    "optimizer",
    [
        lambda: keras.optimizers.Adam(0.01, clipnorm=1.0),
        lambda: keras.optimizers.SGD(0.1, momentum=0.9),
        lambda: keras.optimizers.AdamW(0.01, global_clipnorm=1.0),
        lambda: keras.optimizers.RMSprop(0.01, use_ema=True),
    ],
    ids=["adam", "sgd", "adamw", "rmsprop-ema"],
)
def test_captured_fit_is_keras_own_step_for_step(optimizer: Callable[[], Any]) -> None:
    stock = model_of(optimizer())
    expected = fit(stock, validation_split=0.2)
    model = model_of(optimizer())
    step, graphs = captured(model)
    assert fit(model, validation_split=0.2) == expected
    assert step.refused is None
    # Five steps an epoch, of which the last is smaller and comes too rarely; three run as ever.
    assert [graph.replays for graph in graphs] == [3 * 4 - 3]
    for ours, theirs in zip(model.get_weights(), stock.get_weights(), strict=True):
        np.testing.assert_array_equal(ours, theirs)


def test_captured_fit_with_a_schedule_and_sample_weights_is_keras_own() -> None:
    schedule = keras.optimizers.schedules.CosineDecay(0.1, 10)
    weights = np.random.default_rng(1).random(X.shape).astype("float32")
    losses = []
    for wrap in (False, True):
        model = model_of(keras.optimizers.SGD(schedule))
        graphs = captured(model)[1] if wrap else []
        history = model.fit(X, Y, B, sample_weight=weights, epochs=3, shuffle=False, verbose=0)
        losses.append(history.history["loss"])
    assert losses[0] == losses[1] and len(graphs) == 1


def test_logs_of_a_step_stay_what_they_were() -> None:
    model = model_of()
    captured(model)
    batch = [(torch.from_numpy(X[:B]), torch.from_numpy(Y[:B]))]
    for _ in range(3):
        model.train_function(batch)
    first = model.train_function(batch)["loss"]
    kept = float(first)
    assert float(model.train_function(batch)["loss"]) != kept
    assert float(first) == kept


def test_step_that_draws_random_numbers_runs_as_ever() -> None:
    expected = fit(model_of(dropout=0.3))
    model = model_of(dropout=0.3)
    step, graphs = captured(model)
    assert fit(model) == expected
    assert step.refused is not None and "random numbers" in step.refused
    assert len(graphs) == 1 and graphs[0].replays == 0


def test_batches_of_changing_shapes_or_kinds_run_as_ever() -> None:
    model = model_of()
    step, graphs = captured(model)
    for steps in range(1, T + 1):
        for _ in range(5):
            model.train_function([(torch.from_numpy(X[:B, :steps]), torch.from_numpy(Y[:B, :steps]))])
    assert [graph.replays for graph in graphs] == [2, 2]
    model.train_function([(X[:B], Y[:B])])
    assert len(graphs) == 2 and step.refused is None
