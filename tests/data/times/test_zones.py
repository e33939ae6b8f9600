import datetime
import zoneinfo

import numpy as np
import pytest

from cellerate.data.times.zones import (
    check_zone,
    never_shown,
    shown_twice,
    to_instants,
    to_local,
    zones_of_repeats,
)
from cellerate.errors import ConfigError


def times(*texts):
    return np.array(texts, "datetime64[us]")


@pytest.mark.parametrize(
    "zone", ["Europe/Berlin", "America/New_York", "Australia/Lord_Howe", "Asia/Kolkata", "+05:30"]
)
def test_local_times_equal_those_of_zoneinfo(zone):
    instants = np.datetime64("2019-06-01T00:30", "us") + np.arange(0, 500 * 24, 7) * np.timedelta64(3600, "s")
    local = to_local(instants, zone)
    if zone[0] == "+":
        assert ((local - instants) == np.timedelta64(330, "m")).all()
    else:
        info = zoneinfo.ZoneInfo(zone)
        expected = [
            time.replace(tzinfo=datetime.UTC).astimezone(info).replace(tzinfo=None)
            for time in instants.tolist()
        ]
        assert local.tolist() == expected
    twice = np.zeros(len(local), bool) if zone[0] == "+" else shown_twice(local, zone)
    assert (to_instants(local, zone)[~twice] == instants[~twice]).all()


def test_hour_shown_twice_is_told_apart_and_hour_left_out_is_found():
    fold, gap = times("2023-10-29T02:30", "2023-10-29T02:30"), times("2023-03-26T02:30", "2023-03-26T03:00")
    again = np.array([False, True])
    assert (
        to_instants(fold, "Europe/Berlin", again).tolist()
        == times("2023-10-29T00:30", "2023-10-29T01:30").tolist()
    )
    assert shown_twice(fold, "Europe/Berlin").all() and not shown_twice(gap, "Europe/Berlin").any()
    assert never_shown(gap, "Europe/Berlin").tolist() == [True, False]


def test_zones_whose_clock_goes_back_then_are_named():
    assert "Europe/Berlin" in zones_of_repeats(times("2023-10-29T02:30"))
    assert "America/New_York" in zones_of_repeats(times("2023-11-05T01:30"))
    assert zones_of_repeats(times("2023-10-29T02:30", "2023-07-01T00:00")) == []


def test_unknown_zone_is_refused():
    check_zone(None)
    check_zone("+02:00")
    check_zone("Europe/Berlin")
    with pytest.raises(ConfigError, match=r"time_zone is 'Mars/Olympus'.*Europe/Berlin"):
        check_zone("Mars/Olympus")
