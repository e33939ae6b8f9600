import keras
import numpy as np
import pytest

from cellerate.errors import ConfigError
from cellerate.training.optimizers import build_optimizer, check_updates, current_learning_rate
from cellerate.training.settings import TrainingSettings

pytestmark = [pytest.mark.keras, pytest.mark.backends]


def rate(settings: TrainingSettings, update: int, steps_per_epoch: int = 100) -> float:
    optimizer = build_optimizer(settings, steps_per_epoch)
    optimizer.build([])
    # The first variable of every optimizer counts batches.
    optimizer.variables[0].assign(update * settings.accumulate)
    return current_learning_rate(optimizer)


@pytest.mark.parametrize(
    ("name", "wanted"),
    [("adam", "Adam"), ("adamw", "AdamW"), ("nadam", "Nadam"), ("sgd", "SGD"), ("lion", "Lion")],
)
def test_build_optimizer_by_name_gives_keras_own(name, wanted):
    optimizer = build_optimizer(TrainingSettings(optimizer=name, clipnorm=1.0, weight_decay=0.1), 10)
    assert isinstance(optimizer, getattr(keras.optimizers, wanted))
    assert optimizer.clipnorm == 1.0
    assert optimizer.weight_decay == 0.1


@pytest.mark.parametrize("setting", ["weight_decay", "clipnorm", "clipvalue", "learning_rate"])
def test_setting_of_an_optimizer_below_0_is_refused(setting):
    with pytest.raises(ConfigError, match=f"{setting} .*-0.5"):
        TrainingSettings(**{setting: -0.5})


@pytest.mark.parametrize(("momentum", "nesterov"), [(0.0, False), (0.5, True), (0.9, True)])
def test_sgd_looks_ahead_if_it_has_momentum(momentum, nesterov):
    made = build_optimizer(TrainingSettings(optimizer="sgd", momentum=momentum), 10, "float32")
    assert (made.momentum, made.nesterov) == (momentum, nesterov)


def test_build_optimizer_in_mixed_float16_scales_the_loss():
    optimizer = build_optimizer(TrainingSettings(), 10, "mixed_float16")
    assert isinstance(optimizer, keras.optimizers.LossScaleOptimizer)


@pytest.mark.parametrize("schedule", ["cosine", "linear", "exponential"])
def test_schedule_falls_from_the_peak_to_the_final_rate_over_the_whole_run(schedule):
    settings = TrainingSettings(learning_rate=0.01, schedule=schedule, final_rate=0.1, epochs=2)
    assert rate(settings, 0) == pytest.approx(0.01, rel=1e-5)
    assert 0.001 < rate(settings, 100) < 0.01
    assert rate(settings, 200) == pytest.approx(0.001, rel=1e-4)


@pytest.mark.parametrize("schedule", ["constant", "cosine", "linear", "exponential"])
def test_warmup_rises_linearly_then_the_schedule_begins(schedule):
    settings = TrainingSettings(learning_rate=0.01, schedule=schedule, warmup_steps=10, epochs=1)
    assert rate(settings, 0) == pytest.approx(0.001, rel=1e-4)
    assert rate(settings, 4) == pytest.approx(0.005, rel=1e-4)
    assert rate(settings, 9) == pytest.approx(0.01, rel=1e-4)
    assert rate(settings, 10) == pytest.approx(0.01, rel=1e-4)


def test_warmup_longer_than_integers_of_a_backend_only_rises():
    settings = TrainingSettings(learning_rate=0.01, warmup_steps=10**20, epochs=1)
    assert 0 < rate(settings, 9) == pytest.approx(1e-21)


def test_schedule_after_a_warmup_falls_from_its_first_update_to_its_last():
    settings = TrainingSettings(learning_rate=0.01, schedule="linear", warmup_steps=10, epochs=1)
    # 90 updates are left, and update 10 is the first of them.
    for update in (10, 11, 12, 55, 99):
        assert rate(settings, update) == pytest.approx(0.01 * (1 - (update - 10) / 90), rel=1e-4)


@pytest.mark.parametrize("schedule", ["constant", "cosine", "linear", "exponential"])
@pytest.mark.parametrize("warmup_steps", [0, 3])
def test_fit_with_accumulation_has_the_rate_of_each_update(schedule, warmup_steps):
    class Rates(keras.callbacks.Callback):
        def on_train_batch_begin(self, batch, logs=None):
            found.append(current_learning_rate(self.model.optimizer))

    settings = {"schedule": schedule, "warmup_steps": warmup_steps, "epochs": 2, "final_rate": 0.1}
    rates = []
    for accumulate in (1, 4):
        found = []
        model = keras.Sequential([keras.Input((1,)), keras.layers.Dense(1)])
        optimizer = build_optimizer(TrainingSettings(accumulate=accumulate, **settings), 6 * accumulate)
        model.compile(optimizer, "mse")
        x = np.ones((6 * accumulate, 1), "float32")
        model.fit(x, x, batch_size=1, epochs=2, verbose=0, callbacks=[Rates()])
        rates.append(found)
    np.testing.assert_allclose(rates[1], np.repeat(rates[0], 4), rtol=1e-6)
    assert len(set(rates[0])) > 1 or (schedule, warmup_steps) == ("constant", 0)


def test_accumulation_of_equal_batches_equals_one_large_batch():
    x = np.random.default_rng(0).normal(size=(8, 3)).astype("float32")
    y = x.sum(axis=1, keepdims=True)
    weights = []
    for accumulate, batch_size in ((1, 8), (4, 2)):
        layer = keras.layers.Dense(1, kernel_initializer="ones")
        model = keras.Sequential([keras.Input((3,)), layer])
        settings = TrainingSettings(optimizer="sgd", learning_rate=0.1, momentum=0.0, accumulate=accumulate)
        model.compile(build_optimizer(settings, 8 // batch_size), loss="mse")
        model.fit(x, y, batch_size=batch_size, epochs=1, shuffle=False, verbose=0)
        weights.append(keras.ops.convert_to_numpy(layer.kernel.value))
    np.testing.assert_allclose(weights[0], weights[1], rtol=1e-5)


def test_run_that_ends_before_its_first_update_is_refused():
    check_updates(TrainingSettings(accumulate=20, epochs=2), 10)
    with pytest.raises(
        ConfigError, match=r"averages 21 batches into an update, and the run has 20, .* at most 20"
    ):
        check_updates(TrainingSettings(accumulate=21, epochs=2), 10)
