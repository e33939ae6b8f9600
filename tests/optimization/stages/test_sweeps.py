"""The sweep of batch sizes on simulated machines, and the choice among hand-made candidates."""

import dataclasses
from types import SimpleNamespace

import pytest

from cellerate.report.quality import Interval
from cellerate.report.record import CONTROL, Candidate, Speed, TrainingStep

pytestmark = pytest.mark.keras


def step(size, rate, memory=None):
    return TrainingStep("fused kernels, float32", size, 10, 1.0, 1.0, 1.0, rate, memory)


class Machine:
    """A simulated machine: items a second and memory by batch size, and a largest batch."""

    def __init__(self, rate, memory=None, most=None, rows=None, broken=None):
        self.rate, self.memory, self.most, self.rows, self.broken = rate, memory, most, rows, broken
        self.tried = []

    def __call__(self, size):
        from cellerate.optimization.probe_client import ProbeError

        self.tried.append(size)
        if self.broken and size >= self.broken:
            raise ProbeError("ValueError: no kernel", memory=False)
        if self.most and size > self.most:
            raise ProbeError("MemoryError: no memory", memory=True)
        size = min(size, self.rows or size)
        return step(size, self.rate(size), self.memory(size) if self.memory else None)


def swept(machine, usual=32, free=None, go_on=lambda: True):
    from cellerate.optimization.stages.sweeps import sweep

    points, why = sweep(machine, usual, free, go_on)
    sizes = [point.batch_size for point in points]
    assert sizes == sorted(set(sizes))
    return sizes, why


def test_sweep_ends_where_twice_the_batch_is_no_faster():
    machine = Machine(lambda size: 100.0 * min(size, 64))
    assert swept(machine) == ([8, 16, 32, 64, 128], "")


def test_sweep_tries_three_sizes_even_if_the_first_are_equally_fast():
    assert swept(Machine(lambda size: 100.0)) == ([8, 16, 32], "")


def test_sweep_of_an_unlimited_machine_ends_at_the_largest_size():
    assert swept(Machine(lambda size: float(size)), usual=20_000)[0] == [
        5_000, 10_000, 20_000, 40_000
    ]  # fmt: skip


def test_sweep_always_measures_the_usual_size():
    machine = Machine(lambda size: float(min(size, 60)))
    assert swept(machine, usual=50)[0] == [12, 25, 50, 100, 200]
    assert swept(Machine(float), usual=1, go_on=lambda: False)[0] == [1]
    assert swept(Machine(float), usual=100_000)[0] == [25_000, 50_000, 100_000]


def test_sweep_out_of_memory_looks_for_the_largest_that_fits():
    machine = Machine(lambda size: float(size), most=100)
    sizes, why = swept(machine)
    assert machine.tried == [8, 16, 32, 64, 128, 96, 112, 104]
    assert sizes == [8, 16, 32, 64, 96]
    assert "128 do not fit" in why


def test_sweep_reports_that_no_batch_fits():
    from cellerate.optimization.probe_client import ProbeError

    def full(size):
        raise ProbeError("MemoryError", memory=True)

    assert swept(full) == ([], "Batches of 8 do not fit into memory (MemoryError).")


def test_sweep_whose_first_batch_does_not_fit_looks_for_a_smaller_one():
    machine = Machine(lambda size: 1.0, most=3)
    assert swept(machine)[0] == [2, 3]
    assert machine.tried == [8, 4, 2, 3]


def test_sweep_raises_other_errors():
    from cellerate.optimization.probe_client import ProbeError

    with pytest.raises(ProbeError, match="no kernel"):
        swept(Machine(lambda size: float(size), broken=32))


def test_sweep_skips_sizes_predicted_to_exceed_memory():
    machine = Machine(lambda size: float(size), memory=lambda size: 1_000 + 10 * size)
    sizes, why = swept(machine, free=2_500)  # four fifths of which are 2,000: 100 rows
    assert max(machine.tried) <= 100
    assert sizes == [8, 16, 32, 64, 96]
    assert why.startswith("Batches of 128 would take about")


def test_sweep_without_time_stops_at_the_usual_size():
    assert swept(Machine(lambda size: float(size)), go_on=lambda: False) == (
        [8, 16, 32],
        "There was no time for larger batches.",
    )


def test_sweep_ends_at_the_number_of_rows():
    machine = Machine(lambda size: float(size), rows=40)
    assert swept(machine) == ([8, 16, 32, 40], "")
    assert machine.tried == [8, 16, 32, 64, 128]


# The choice.


def made(name, latency=1.0, quality=2.0, size=100, passes=True, throughput=None, made_by="quantize"):
    return Candidate(
        id=name,
        title=name,
        made_by=made_by,
        precision="int8",
        parameters=1,
        file_bytes=size,
        quality=Interval(quality, quality, quality),
        loss=None,
        passes_gate=passes,
        speeds=(Speed("packed", latency, latency, 1e3 / latency, throughput, 1),),
    )


ORIGINAL = made("original", latency=100.0, size=1000, throughput=100.0, made_by="baseline")


def chosen(*candidates, objective="latency"):
    from cellerate.optimization.stages.verdict import choose

    return choose([ORIGINAL, *candidates], objective).id


def test_choose_takes_the_fastest_that_passes():
    candidates = made("slow", 3.0), made("fast", 1.0), made("bad", 0.1, passes=False)
    assert chosen(*candidates) == "fast"


def test_choose_takes_the_smallest_of_equally_fast_models():
    assert chosen(made("a", 1.00, size=50), made("b", 1.04, size=40), made("c", 1.06, size=30)) == "b"


def test_choose_takes_the_better_of_two_students():
    worse, better = Interval(0.01, 0.01, 0.01), Interval(-0.02, -0.02, -0.02)
    student = dataclasses.replace(made("student", 1.0), loss=worse)
    untaught = dataclasses.replace(made("untaught", 1.01), loss=better)
    assert chosen(student, untaught) == chosen(untaught, student) == "untaught"
    assert chosen(student, untaught, objective="size") == "untaught"


def in_turns(*latencies):
    return [Speed("packed", latency, latency, 1e3 / latency, None, 1) for latency in latencies]


def test_choose_takes_the_smallest_if_turns_contradict_and_says_so():
    from cellerate.optimization.stages.verdict import _doubt, choose

    small, fast = made("small", 2.0, size=40), made("fast", 1.0, size=50)
    for turns, found in (([1.0, 1.0, 1.0], "fast"), ([1.0, 1.0, 9.0], "small")):
        raced = {"small": in_turns(2.0, 2.0, 2.0), "fast": in_turns(*turns)}
        taken = choose([ORIGINAL, small, fast], "latency", raced)
        assert taken.id == found
        context = SimpleNamespace(
            settings=SimpleNamespace(objective="latency"),
            state=SimpleNamespace(candidates=[ORIGINAL, small, fast]),
        )
        doubt = _doubt(context, taken, raced)
        assert bool(doubt) is (found == "small")
    assert "fast was 2.00x as fast as small, but only in 2 of 3 turns, which is noise" in doubt[0]
    # Without turns only the separate measurements count.
    assert choose([ORIGINAL, small, fast], "latency").id == "fast"


def test_choose_compares_each_student_with_its_control():
    better, worse = Interval(-0.05, -0.05, -0.05), Interval(0.009, 0.009, 0.009)
    one = dataclasses.replace(made("one"), loss=better, control_loss=worse)
    other = dataclasses.replace(made("other"), loss=Interval(0.001, 0.001, 0.001))
    assert chosen(one, other) == chosen(other, one) == "other"


def test_choose_by_latency_takes_the_fastest_single_call():
    # One model has the higher throughput, the other the lower latency.
    stream = dataclasses.replace(made("stream", 2.0), speeds=(Speed("packed", 2.0, 2.0, 1e6, 1e3, 1),))
    assert chosen(stream, made("call", 1.0)) == "call"
    assert chosen(stream, made("call", 1.0), objective="throughput") == "stream"


@pytest.mark.parametrize("objective", ["latency", "throughput", "size", "training"])
def test_choose_never_takes_a_control(objective):
    control = made("control-9", 0.1, size=1, throughput=1e9, made_by=CONTROL)
    assert chosen(control, objective=objective) == "original"


def test_front_excludes_controls():
    from cellerate.optimization.stages.verdict import front

    control, other = made("control-9", 1.0, quality=1.0, made_by=CONTROL), made("other", 2.0)
    found = front([control, other], higher_is_better=False)
    assert [one.on_front for one in found] == [False, True]


def test_choose_keeps_the_original_if_faster_than_all_that_pass():
    slow, fast = made("float32", 250.0, size=100), made("int8", 1.0, passes=False)
    assert chosen(slow, fast) == "original"
    assert chosen(made("float32", 5.0, throughput=10.0), objective="throughput") == "original"
    assert chosen(slow, fast, objective="size") == "float32"


def test_choose_by_throughput_compares_batched_calls():
    one, many = made("one", 1.0, throughput=1e3), made("many", 2.0, throughput=1e6)
    assert chosen(one, many) == "one"
    assert chosen(one, many, objective="throughput") == "many"


def test_choose_by_size_takes_the_smallest_model():
    assert chosen(made("fast", 1.0, size=50), made("small", 9.0, size=49), objective="size") == "small"


def test_choose_for_training_takes_no_compressed_model():
    candidates = made("float32", 5.0, made_by="kernels"), made("int8", 1.0)
    assert chosen(*candidates, objective="training") == "float32"
    assert chosen(candidates[1], objective="training") == "original"


@pytest.mark.parametrize("objective", ["latency", "throughput", "size", "training"])
def test_choose_keeps_the_original_if_nothing_passes(objective):
    assert chosen(made("int8", passes=False), objective=objective) == "original"
    assert chosen(objective=objective) == "original"


@pytest.mark.parametrize("higher", [False, True])
def test_front_marks_models_unbeaten_in_speed_and_quality(higher):
    from cellerate.optimization.stages.verdict import front

    sign = -1 if higher else 1
    candidates = [
        made("best", 5.0, quality=sign * 1.0),
        made("between", 3.0, quality=sign * 2.0),
        made("beaten", 4.0, quality=sign * 2.5),
        made("as slow and worse", 3.0, quality=sign * 2.1),
        made("fastest", 1.0, quality=sign * 9.0),
        made("twin of the fastest", 1.0, quality=sign * 9.0),
    ]
    found = front(candidates, higher_is_better=higher)
    assert [one.id for one in found] == [one.id for one in candidates]
    assert {one.id for one in found if one.on_front} == {
        "best",
        "between",
        "fastest",
        "twin of the fastest",
    }
    assert [dataclasses.replace(one, on_front=False) for one in found] == candidates
