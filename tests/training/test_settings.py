import dataclasses
import math

import pytest

from cellerate.errors import ConfigError
from cellerate.training.settings import TrainingSettings


@pytest.mark.parametrize(
    "wrong",
    [
        {"epochs": 0},
        {"epochs": 1.5},
        {"epochs": True},
        {"optimizer": "rmsprop"},
        {"learning_rate": 0},
        {"learning_rate": math.nan},
        {"learning_rate": "0.1"},
        {"clipnorm": -1.0},
        {"accumulate": 0},
        {"precision": "float16"},
        {"schedule": "step"},
        {"final_rate": 1.5},
        {"plateau_factor": 1.0},
        {"plateau_factor": 0.0},
        {"keep_checkpoints": 0},
        {"max_seconds": 0},
        {"seed": -1},
        {"jit_compile": "yes"},
        {"patience": 0},
        {"momentum": -0.5},
        {"momentum": 1.0},
    ],
    ids=str,
)
def test_settings_with_a_wrong_value_name_the_setting(wrong):
    with pytest.raises(ConfigError, match=next(iter(wrong))):
        TrainingSettings(**wrong)


def test_settings_at_their_bounds_are_valid():
    TrainingSettings(
        epochs=1, momentum=0.0, final_rate=1.0, warmup_steps=0, seed=0, patience=1, keep_checkpoints=1
    )
    TrainingSettings(final_rate=0.0, accumulate=1, log_every=1)


def test_settings_are_immutable_and_keyword_only():
    with pytest.raises(dataclasses.FrozenInstanceError):
        TrainingSettings().epochs = 3
    with pytest.raises(TypeError):
        TrainingSettings(3)


def test_settings_with_two_kinds_of_clipping_are_refused():
    with pytest.raises(ConfigError, match="clipnorm and clipvalue"):
        TrainingSettings(clipnorm=1.0, clipvalue=1.0)


def test_settings_with_plateau_and_schedule_are_refused():
    with pytest.raises(ConfigError, match="plateau_patience"):
        TrainingSettings(plateau_patience=2, schedule="cosine")


def test_curve_settings_hold_only_settings_that_shape_the_curve():
    one = TrainingSettings(epochs=2, max_seconds=5, patience=1)
    other = TrainingSettings(epochs=9, checkpoint_every_s=1)
    assert one.curve_settings() == other.curve_settings()
    assert one.curve_settings() != TrainingSettings(learning_rate=0.1).curve_settings()


def test_curve_settings_with_a_schedule_hold_the_number_of_epochs():
    two, three = (TrainingSettings(epochs=n, schedule="cosine").curve_settings() for n in (2, 3))
    assert two != three
