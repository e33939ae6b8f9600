import pytest

from cellerate.errors import ConfigError
from cellerate.optimization.sweep.settings import SweepSettings


@pytest.mark.parametrize(
    ("given", "reason"),
    [
        ({"seconds": 0}, "above 0"),
        ({"steps": 0}, "at least 1"),
        ({"rounds": 0}, "at least 1"),
        ({"time_budget": -1}, "above 0"),
        ({"seconds": 1.0, "steps": 5}, "cannot be used together"),
        ({"trials": 5}, "search=True"),
        ({"study": "sqlite:///a.db"}, "search=True"),
        ({"search": True, "steps": 5}, "equal time"),
    ],
)
def test_settings_that_cannot_be_used_are_refused(given, reason):
    with pytest.raises(ConfigError, match=reason):
        SweepSettings(**given)


def test_points_of_a_search_train_longer():
    assert SweepSettings(search=True).point_s > SweepSettings().point_s
    assert SweepSettings(seconds=2.0, search=True).point_s == 2.0
