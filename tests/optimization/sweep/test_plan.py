import itertools

import pytest

from cellerate.errors import ConfigError
from cellerate.optimization.sweep.plan import point_cost_s, settings_of_point, within
from cellerate.optimization.sweep.settings import LEAST_S, SweepSettings
from support.optimization.sweeps import plan_of

ALONE = SweepSettings(beside_stock=False)


def test_all_values_are_combined_and_the_control_comes_first():
    made = plan_of(ALONE, batch_size="32,64", units="16,32")
    assert made.points[0].control
    # The values do not include the default of units, so the control is an extra point.
    assert made.points[0].values == {"batch_size": 64, "units": 64}
    grid = [{"batch_size": b, "units": u} for b, u in itertools.product((32, 64), (16, 32))]
    assert [one.values for one in made.points[1:]] == grid
    assert not any(one.control for one in made.points[1:])


def test_control_is_part_of_the_grid_where_its_value_is():
    made = plan_of(ALONE, batch_size="32,64")
    assert [one.values["batch_size"] for one in made.points] == [64, 32]


def test_single_value_applies_to_all_points():
    made = plan_of(ALONE, batch_size="8,16", units="24")
    assert made.axes == {"batch_size": (8, 16)}
    parts = settings_of_point(made.base, made.points[1].values)
    assert parts["architecture"] == {"units": 24}
    assert parts["data"] == {"batch_size": 8}


def test_order_of_options_does_not_change_point_names():
    one = plan_of(ALONE, units="8,16", batch_size="8,16")
    other = plan_of(ALONE, batch_size="8,16", units="8,16")
    assert [point.key for point in one.points] == [point.key for point in other.points]
    assert [point.label for point in one.points] == [point.label for point in other.points]


@pytest.mark.parametrize(
    ("options", "beside"),
    [
        ({"batch_size": "8,16"}, True),
        ({"batch_size": "8,16", "device": "cpu,gpu"}, True),
        ({"batch_size": "8,16", "units": "8,16"}, False),
        ({"units": "8,16"}, False),
        ({"batch_size": "8,16", "implementation": "auto"}, False),
    ],
)
def test_stock_keras_is_added_to_a_sweep_of_batch_sizes_only(options, beside):
    assert ("implementation" in plan_of(SweepSettings(), **options).axes) is beside


def test_stock_keras_can_be_requested_and_excluded():
    assert "implementation" in plan_of(SweepSettings(beside_stock=True), units="8,16").axes
    assert "implementation" not in plan_of(ALONE, batch_size="8,16").axes
    with pytest.raises(ConfigError, match="beside_stock"):
        plan_of(SweepSettings(beside_stock=True), implementation="auto", units="8,16")


def test_stock_keras_trains_the_control_too():
    made = plan_of(SweepSettings(), batch_size="8,16")
    assert {"batch_size": 64, "implementation": "keras"} in [one.values for one in made.points]


def test_control_of_two_devices_runs_on_the_gpu():
    assert plan_of(ALONE, device="cpu,gpu").points[0].values == {"device": "gpu"}


def test_sweep_of_one_point_or_too_many_is_refused():
    with pytest.raises(ConfigError, match="nothing is swept"):
        plan_of(ALONE, units="16")
    with pytest.raises(ConfigError, match=r"10,140 points \(13 of batch_size x 13 of units x 6"):
        plan_of(ALONE, batch_size="1..4096", units="1..4096", layers="1..32", dropout="0..0.9")
    with pytest.raises(ConfigError, match="learning_rat"):
        plan_of(ALONE, learning_rat="1,2")


def test_contradicting_settings_are_refused():
    with pytest.raises(ConfigError, match="choose one"):
        plan_of(ALONE, units="8,16", clipnorm=1.0, clipvalue=1.0)


def test_labels_are_unique():
    made = plan_of(SweepSettings(), batch_size="8,16", device="cpu,gpu")
    labels = [one.label for one in made.points]
    assert len(set(labels)) == len(labels)
    assert "batch size 8, keras, cpu" in labels


def points(count):
    return list(plan_of(ALONE, batch_size=",".join(map(str, range(1, count + 1)))).points[1:])


def test_short_time_cuts_training_before_it_drops_points():
    some = points(10)
    seconds, kept, left_out = within(some, 200.0, 10.0, 20.0)
    assert LEAST_S < seconds < 20.0
    assert (kept, left_out) == (some, [])
    assert len(kept) * point_cost_s(10.0, seconds) == pytest.approx(200.0)


def test_dropped_points_are_spread_over_the_grid():
    some = points(10)
    seconds, kept, left_out = within(some, 60.0, 10.0, 20.0)
    assert seconds == LEAST_S
    assert [one.values["batch_size"] for one in kept] == [1, 3, 5, 7, 10]
    assert len(left_out) == 5


def test_sweep_without_time_drops_all_points():
    assert within(points(3), -5.0, 10.0, 20.0)[1] == []
    assert within([], 10.0, 10.0, 5.0) == (5.0, [], [])
