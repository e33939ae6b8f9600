"""Timing, on a clock that only the timed calls advance."""

import dataclasses
import math

import pytest

from cellerate.optimization import clocks


class Clock:
    def __init__(self) -> None:
        self.now = 0.0

    def perf_counter(self) -> float:
        return self.now

    def taking(self, *seconds):
        """A call that takes these durations in order, and repeats the last one."""
        waiting = list(seconds)
        calls = []

        def call(count=None):
            calls.append(count)
            self.now += (waiting.pop(0) if len(waiting) > 1 else waiting[0]) * (count or 1)

        call.calls = calls
        return call


@pytest.fixture
def clock(monkeypatch):
    found = Clock()
    monkeypatch.setattr(clocks, "time", found)
    return found


def test_timed_calls_leaves_out_those_that_warm_up(clock):
    found = clocks.timed_calls(clock.taking(5.0, 0.25))
    assert found == pytest.approx([0.25] * 6)  # six is the minimum: four fill the second


@pytest.mark.parametrize(("seconds", "calls"), [(0.5, 3), (0.2, 2), (0.0, 1)])
def test_timed_calls_make_fewer_calls_in_less_time(clock, seconds, calls):
    assert clocks.timed_calls(clock.taking(5.0, 0.25), seconds) == pytest.approx([0.25] * calls)
    # As many quick calls as fit.
    assert len(clocks.timed_calls(clock.taking(1 / 64), seconds)) == max(1, math.ceil(64 * seconds))


def test_speed_spends_at_most_the_given_time_on_each_figure(clock):
    spent = []
    for seconds in (0.25, 0.5, None, 9.0):
        before = clock.now
        one, several = clock.taking(1 / 256), clock.taking(1 / 1024)
        clocks.speed(clocks.Use("packed", one, clock.taking(1 / 256), 8, several), seconds)
        spent.append(clock.now - before)
    # Three figures: latency, many at once, and one after another; the quarter finds how many fit.
    assert spent[:2] == [pytest.approx(3.25 * 0.25, rel=0.15), pytest.approx(3.25 * 0.5, rel=0.15)]
    assert spent[2] == pytest.approx(3.25, rel=0.15) == spent[3]


def test_timed_calls_takes_as_many_as_fit(clock, monkeypatch):
    monkeypatch.setattr(clocks, "MEASURED_S", 2.0)
    assert len(clocks.timed_calls(clock.taking(1 / 16))) == 32


def test_timed_calls_without_calls_end(clock, monkeypatch):
    monkeypatch.setattr(clocks, "_WARM_S", 0.0)
    monkeypatch.setattr(clocks, "_MOST_CALLS", 50)
    assert clocks.timed_calls(lambda: None) == [0.0] * 50


def test_speed_of_one_item_a_call(clock):
    found = clocks.speed(clocks.Use("predict", clock.taking(0.5, 1 / 64), clock.taking(0.25), 32))
    assert (found.way, found.batch) == ("predict", 32)
    assert found.latency_p50_ms == pytest.approx(1e3 / 64)
    assert found.latency_p99_ms == pytest.approx(1e3 / 64)
    assert found.per_s == pytest.approx(64)
    assert found.throughput_per_s == pytest.approx(32 / 0.25)


def test_speed_of_varying_calls_separates_the_median_from_the_slowest(clock):
    # The first warms up for long enough; 90 of the 100 others take a 128th of a second, and 10 a 32nd.
    call = clock.taking(0.2, *[1 / 128] * 60, *[1 / 32] * 10, 1 / 128)
    found = clocks.speed(clocks.Use("predict", call, None, 1))
    assert found.latency_p50_ms == pytest.approx(1e3 / 128)
    assert found.latency_p99_ms == pytest.approx(1e3 / 32)
    assert found.per_s == pytest.approx(128)
    assert found.throughput_per_s is None


def test_speed_of_pieces_counts_their_items(clock):
    several = clock.taking(1 / 1024)
    one, many = clock.taking(1 / 512), clock.taking(0.5)
    found = clocks.speed(clocks.Use("packed", one, many, 8, several, 10))
    # The latency counts a whole call, which takes twice as long for one item as for an item of many.
    assert found.latency_p50_ms == pytest.approx(1e3 / 512)
    assert found.latency_p99_ms == pytest.approx(1e3 / 512)
    assert found.throughput_per_s == pytest.approx(8 * 10 / 0.5)
    assert found.per_s == pytest.approx(1024)
    # Later calls take as many items as fit into a fifth of a second.
    assert several.calls[:3] == [16, 32, 64]
    assert several.calls[-5:] == [204] * 5


def test_middle_of_turns_takes_the_median_of_each_figure():
    turns = [
        clocks.Speed("w", p50, 2 * p50, 1 / p50, many, 8)
        for p50, many in ((1.0, 5.0), (9.0, 7.0), (2.0, 9.0))
    ]
    assert clocks.middle(turns) == clocks.Speed("w", 2.0, 4.0, 0.5, 7.0, 8)
    unknown = [dataclasses.replace(one, throughput_per_s=None) for one in turns]
    assert clocks.middle(unknown).throughput_per_s is None
