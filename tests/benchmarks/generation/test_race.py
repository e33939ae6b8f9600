"""A latency is the time of one call that returns one character."""

import time

from benchmarks.generation import race as generation
from benchmarks.generation.peers import clocked
from cellerate.measure import as_timing


def test_latency_is_that_of_single_calls():
    record = generation.record_of("cellerate", "step int8", as_timing([0.001] * 98 + [0.005, 0.009]), 1)
    assert record["median_s"] == 0.001
    assert 0.005 <= record["p99_s"] <= 0.009


def test_call_that_makes_many_characters_has_no_latency():
    record = generation.record_of("cellerate", "generate int8", as_timing([0.5, 0.7, 0.6]), 1000)
    assert record["characters_per_s"] == 1000 / 0.6
    assert not [name for name in record if name.startswith("p99") or "latency" in name]


def test_clocked_job_tells_the_whole_call_and_what_it_made():
    def work(count):
        time.sleep(0.02)
        return count + 1

    (seconds,), made = clocked(work)(7)
    assert made == 8 and 0.02 <= seconds < 2


def test_step_times_each_call_by_itself():
    class Model:
        def stepper(self):
            return self

        def step(self, ids):
            time.sleep(0.002)

    seconds, characters = generation.step(Model(), 5)
    assert characters == 1 and len(seconds) == 5
    assert all(0.002 <= one < 0.5 for one in seconds)
