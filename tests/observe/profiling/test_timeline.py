"""Each instant of a recording is counted once, for the thread that computes then."""

import pytest

from cellerate.bridges.jax_profiler import sources_of
from cellerate.bridges.profiled import WINDOW, Event, mark, marked
from cellerate.errors import BackendError
from cellerate.observe.profiling.timeline import share_out


def event(begin, end, part=None, *, thread="a", backward=False, work=True, name="op"):
    return Event(thread, begin, end, name, part, backward, work)


def window(begin, end):
    return event(begin, end, work=False, name=WINDOW)


def took(shares):
    return {owner: (spent.busy_ns, spent.idle_ns) for owner, spent in shares.spent.items()}


def test_time_is_shared_by_what_runs_at_once_and_the_rest_is_idle():
    shares = share_out(
        [
            window(0, 100),
            event(0, 40, 1),
            event(20, 60, 2, thread="b"),
            event(70, 80, 1, backward=True),
        ]
    )
    assert took(shares) == {
        (1, False): (30, 0),
        (2, False): (30, 0),
        (1, True): (10, 0),
        (None, False): (0, 30),
    }
    assert shares.idle_ns == 30
    assert sum(spent.busy_ns + spent.idle_ns for spent in shares.spent.values()) == shares.window_ns == 100


def test_innermost_event_counts_and_unnamed_ones_belong_to_what_is_around():
    shares = share_out([window(0, 100), event(0, 100, 1), event(10, 30, 2), event(40, 50)])
    assert took(shares) == {(1, False): (80, 0), (2, False): (20, 0)}


def test_idle_time_belongs_to_the_mark_that_python_is_in():
    shares = share_out(
        [window(0, 100), event(10, 60, 3, work=False, name=mark(3)), event(20, 30), event(70, 80)]
    )
    assert took(shares) == {(3, False): (10, 40), (None, False): (10, 40)}


def test_what_lies_outside_the_window_does_not_count():
    shares = share_out([window(100, 200), event(0, 110, 1), event(190, 400, 1), event(300, 310, 2)])
    assert took(shares) == {(1, False): (20, 0), (None, False): (0, 80)}


def test_without_a_window_an_error_says_so():
    with pytest.raises(BackendError, match="recorded nothing"):
        share_out([event(0, 1, 1)])


def test_innermost_mark_of_a_name_counts():
    assert marked(f"jit(step)/jvp({mark(2)})/{mark(11)}/dot_general") == 11
    assert marked("functional/lstm/cellerate.p4._1/MatMul:MatMul") == 4
    assert marked("jit(step)/dot_general") is None


PROGRAM = f"""
HloModule jit_train_step

%fused (param_0: f32[4]) -> f32[4] {{
  %param_0 = f32[4]{{0}} parameter(0)
  %a = f32[4]{{0}} add(%param_0, %param_0), metadata={{op_name="jit(step)/jvp({mark(1)})/add"}}
  ROOT %b = f32[4]{{0}} multiply(%a, %a), metadata={{op_name="jit(step)/jvp({mark(1)})/mul"}}
}}

ENTRY %main (x: f32[4]) -> f32[4] {{
  %x = f32[4]{{0}} parameter(0), metadata={{op_name="x"}}
  %fusion = f32[4]{{0}} fusion(%x), kind=kLoop, calls=%fused, metadata={{op_name="reduce_sum"}}
  ROOT %dot.2 = f32[4]{{0}} dot(%fusion, %x), metadata={{op_name="jit(step)/transpose(jvp({mark(3)}))/dot_general"}}
}}
"""


def test_instructions_know_their_operations_and_fusions_those_within():
    found = sources_of(PROGRAM)
    assert marked(found["fusion"]) == 1
    assert found["dot.2"] == f"jit(step)/transpose(jvp({mark(3)}))/dot_general"
    assert found["x"] == "x"
