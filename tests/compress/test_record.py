import dataclasses
import json
import math

import pytest

from cellerate.compress.record import CompressionRecord, QualityGate, relative_loss
from cellerate.errors import ConfigError


def record(**changes):
    told = {
        "method": "prune",
        "settings": {"share": 0.5},
        "metric": "loss",
        "quality_before": 2.0,
        "quality_after": 2.5,
        "parameters_before": 100,
        "parameters_after": 60,
        "seconds": 1.5,
        "details": {"units": [3, 4]},
    }
    return CompressionRecord(**(told | changes))


@pytest.mark.parametrize(
    ("before", "after", "expected"),
    [
        (2.0, 2.5, 0.25),
        (2.0, 1.5, -0.25),
        (-2.0, -1.5, 0.25),  # a log-likelihood below 0: less is better all the same
        (-2.0, -2.5, -0.25),
        (0.0, 0.0, 0.0),
        (0.0, 1e-9, math.inf),
        (0.0, -1e-9, -math.inf),
        (math.inf, math.inf, 0.0),
    ],
)
def test_relative_loss_of_a_pair_is_the_share_it_became_worse_by(before, after, expected):
    assert relative_loss(before, after) == expected


@pytest.mark.parametrize(
    ("before", "after"),
    # What arithmetic makes no number of has a sign, and it may be that of a better metric.
    [
        (math.nan, 1.0),
        (1.0, math.nan),
        (math.nan, math.nan),
        (0.0, math.nan),
        (0.0, math.copysign(math.nan, -1)),
    ],
)
def test_relative_loss_with_a_nan_is_nan(before, after):
    assert math.isnan(relative_loss(before, after))


@pytest.mark.parametrize(
    ("max_loss", "before", "after", "passes"),
    [
        (0.25, 2.0, 2.5, True),
        (0.25, 2.0, 2.51, False),
        (0.0, 2.0, 2.0, True),
        (0.0, 2.0, 1.0, True),
        (0, 2.0, 2.001, False),
        (0.5, -2.0, -1.0, True),
        (0.5, -2.0, -0.9, False),
        (10.0, 0.0, 0.1, False),
        (0.1, 0.0, 0.0, True),
        (10.0, 1.0, math.nan, False),
        (10.0, math.nan, 1.0, False),
        (10.0, 1.0, math.inf, False),
        (10.0, 0.0, math.copysign(math.nan, -1), False),
    ],
)
def test_gate_lets_through_what_is_at_most_so_much_worse(max_loss, before, after, passes):
    assert QualityGate(max_loss).passes(before, after) is passes


@pytest.mark.parametrize("max_loss", [-0.01, math.nan, math.inf, "0.1", None, True])
def test_gate_of_no_usable_number_raises_config_error(max_loss):
    with pytest.raises(ConfigError, match="max_loss"):
        QualityGate(max_loss)


def test_record_tells_its_loss_of_quality_and_all_else_as_json():
    found = record()
    assert found.quality_loss == 0.25
    told = json.loads(json.dumps(found.to_json()))
    fields = {field.name: getattr(found, field.name) for field in dataclasses.fields(found)}
    assert told == fields | {"quality_loss": 0.25}


@pytest.mark.parametrize("missing", ["quality_before", "quality_after"])
def test_record_without_a_judge_has_no_loss_of_quality(missing):
    found = record(**{missing: None})
    assert found.quality_loss is None
    assert found.to_json()["quality_loss"] is None


def test_record_is_not_changed_by_changing_what_to_json_gave():
    found = record()
    found.to_json()["details"]["units"].append(5)
    assert found.details == {"units": [3, 4]}
