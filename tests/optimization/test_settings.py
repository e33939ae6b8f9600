import pytest

import cellerate
from cellerate.errors import ConfigError
from cellerate.optimization.settings import OptimizeSettings
from cellerate.optimization.stages.registry import STAGES


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"objective": "speed"}, "latency"),
        ({"max_quality_loss": -0.01}, "at least 0"),
        ({"max_quality_loss": float("nan")}, "max_quality_loss"),
        ({"max_quality_loss": "1 %"}, "max_quality_loss"),
        ({"time_budget": 0}, "above 0"),
        ({"time_budget": float("inf")}, "time_budget"),
        ({"batch_size": 0}, "at least 1"),
        ({"batch_size": 2.5}, "whole number"),
        ({"latency_goal_ms": 0}, "above 0"),
        ({"steps": 0}, "at least 1"),
        ({"steps": True}, "steps"),
        ({"seed": -1}, "at least 0"),
        ({"only": ["prunes"]}, "prune"),
        ({"skip": ["baseline"]}, "kernels"),
        ({"only": "prune"}, "list of stages"),
        ({"skip": 3}, "list of stages"),
        ({"only": ["prune"], "skip": ["distill"]}, "cannot be used together"),
        ({"keep": []}, "skip prune"),
        ({"keep": 0.5}, r"such as \[0\.5\]"),
        ({"keep": "0.5"}, r"such as \[0\.5\]"),
        ({"keep": [0.5, 1]}, "below 1"),
        ({"keep": [0.0]}, "above 0"),
    ],
    ids=str,
)
def test_invalid_settings_raise_with_the_expected_values(given, said):
    with pytest.raises(ConfigError, match=said):
        OptimizeSettings(**given)


def chosen(**settings):
    from cellerate.optimization.stages.loading import chosen_stages

    return tuple(chosen_stages(OptimizeSettings(**settings)))


@pytest.mark.keras
def test_chosen_stages_keep_their_fixed_order():
    assert chosen() == tuple(STAGES)
    assert chosen(only=["prune", "kernels"]) == ("kernels", "prune")
    assert chosen(skip=["length", "batch"]) == (
        "pack",
        "quantize",
        "kernels",
        "pipeline",
        "precision",
        "prune",
        "distill",
    )


@pytest.mark.keras
def test_chosen_stages_for_training_do_not_change_the_model():
    assert chosen(objective="training") == (
        "pack",
        "kernels",
        "batch",
        "length",
        "pipeline",
        "precision",
    )
    assert chosen(objective="training", only=["quantize"]) == ("quantize",)


@pytest.mark.keras
def test_optimize_checks_its_settings_first():
    with pytest.raises(
        ConfigError, match=r"'quality' is not an argument of optimize; did you mean 'max_quality_loss'"
    ):
        cellerate.optimize("no such model.keras", "no such data.txt", quality=1)
    with pytest.raises(ConfigError, match="prune"):
        cellerate.optimize("no such model.keras", "no such data.txt", only="prunes")
