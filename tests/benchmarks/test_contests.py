"""Contests are fair: nobody is dropped silently, nobody is timed unchecked, and all have the same allocator."""

import sys
from pathlib import Path
from typing import Any, ClassVar

import pytest

from benchmarks import cases, processes
from benchmarks.generation import race as generation
from benchmarks.inference import race as inference
from benchmarks.precisions import PRECISIONS
from benchmarks.tables import by_case
from benchmarks.training import kernel, race as lstm_race, steps as lstm
from cellerate.machine.environment import BACKENDS
from cellerate.observe.bench.contestant import allocator_found

TRUTH = [4.7, 4.6, 4.5]
BOOK = Path("no book")


class Fake:
    """A contestant of the training contest that answers from a table, in no time."""

    started: ClassVar[list["Fake"]] = []

    def __init__(self, book: Path, **settings: Any) -> None:
        self.settings, self.timed, self.closed = settings, 0, False
        self.allocator = settings["allocator"]
        self.seconds: dict[int, list[float]] = {}
        self.peak_bytes, self.ran = 0, {}
        Fake.started.append(self)

    def steps(
        self, count: int, *, timed: bool = True, batch: int | None = None, limit_s: float | None = None
    ) -> list[float]:
        self.timed += timed
        if timed:
            self.seconds.setdefault(batch or 0, []).extend([0.01] * (count - 1))
        return self.first_losses()

    def first_losses(self) -> list[float]:
        return TRUTH

    record = lstm_race.Contestant.record

    def close(self) -> None:
        self.closed = True


@pytest.fixture
def fake(monkeypatch: pytest.MonkeyPatch) -> type[Fake]:
    """`Fake` instead of the training contest's processes."""
    kind = type("Fake", (Fake,), {})
    monkeypatch.setattr(Fake, "started", [])
    monkeypatch.setattr(lstm_race, "Contestant", kind)
    return kind


def way(settings: dict[str, Any]) -> tuple[Any, ...]:
    """What tells the contestants of a race apart."""
    return tuple(
        settings[name]
        for name in ("backend", "implementation", "policy", "allocator", "jit_compile", "unroll")
    )


def timed_contestants() -> set[tuple[Any, ...]]:
    return {way(one.settings) for one in Fake.started if one.timed}


def test_race_when_one_does_not_compile_records_it_with_its_reason(fake, monkeypatch):
    def answer(self):
        if self.settings["unroll"]:
            raise processes.RefusedError("did not compile in 60 s")
        return TRUTH

    monkeypatch.setattr(fake, "first_losses", answer)
    asked = lstm.contestants_of(128, "float32")
    race = lstm_race.Contest(BOOK, quick=False)
    (records,) = race.race(asked, seconds=0.1)
    assert {way(one) for one in [*records, *race.refused]} == {way(one) for one in asked}
    assert {way(one) for one in race.refused} == {way(one) for one in asked if one["unroll"]}
    assert all(one["refused"] == "did not compile in 60 s (H=128)" for one in race.refused)
    begun = len(Fake.started)
    race.race(lstm.contestants_of(256, "float32"), seconds=0.1)
    assert not any(one.settings["unroll"] for one in Fake.started[begun:])
    assert len(race.refused) == 2 * len([one for one in asked if one["unroll"]])
    assert all(one.closed for one in Fake.started)


def test_race_when_a_peer_is_wrong_records_no_time_of_it(fake, monkeypatch):
    def answer(self):
        wrong = self.settings["implementation"] == "torch.nn.LSTM" and self.settings["policy"] == "float32"
        return [TRUTH[0], TRUTH[1], TRUTH[2] * 1.001] if wrong else TRUTH

    monkeypatch.setattr(fake, "first_losses", answer)
    race = lstm_race.Contest(BOOK, quick=False)
    (records,) = race.race(lstm.contestants_of(128, "float32"), seconds=0.1)
    assert {one["implementation"] for one in records} == {"keras", "cellerate-cpu"}
    assert {one["implementation"] for one in race.refused} == {"torch.nn.LSTM"}
    assert all("away from" in one["refused"] for one in race.refused)
    assert not any(one[1] == "torch.nn.LSTM" for one in timed_contestants())


@pytest.mark.parametrize("losses", [[4.7, 4.6, 4.6], [4.7, 4.6], [], [4.7, 4.6, float("nan")]])
def test_race_when_ours_is_wrong_or_unchecked_ends(fake, monkeypatch, losses):
    ours = lambda self: losses if self.settings["implementation"] == "cellerate-cpu" else TRUTH  # noqa: E731
    monkeypatch.setattr(fake, "first_losses", ours)
    with pytest.raises(RuntimeError, match="losses"):
        lstm_race.Contest(BOOK, quick=False).race(lstm.contestants_of(128, "float32"), seconds=0.1)
    assert not timed_contestants()


def test_race_when_ours_has_another_allocator_ends_untimed(fake, monkeypatch):
    def steps(self, *arguments, **options):
        if self.settings["implementation"] == "keras":
            self.allocator = "stock"
        return Fake.steps(self, *arguments, **options)

    monkeypatch.setattr(fake, "steps", steps)
    with pytest.raises(RuntimeError, match="stock"):
        lstm_race.Contest(BOOK, quick=False).race(lstm.contestants_of(128, "float32"), seconds=0.1)
    assert not timed_contestants()


def test_race_judges_keras_on_tensorflow_by_its_own_steps_and_by_the_first_loss_of_all(fake, monkeypatch):
    own = [TRUTH[0], 4.2, 4.1]

    def answer(self):
        one = self.settings
        theirs = one["backend"] == "tensorflow" and one["implementation"] != "torch.nn.LSTM"
        return [4.9 if theirs and one["unroll"] else TRUTH[0], *(own if theirs else TRUTH)[1:]]

    monkeypatch.setattr(fake, "first_losses", answer)
    race = lstm_race.Contest(BOOK, quick=False)
    (records,) = race.race(lstm.contestants_of(128, "float32"), seconds=0.1)
    assert ("tensorflow", "keras") in {(one["backend"], one["implementation"]) for one in records}
    assert [way(one)[0::5] for one in race.refused] == [("tensorflow", True)]


@pytest.mark.parametrize("case", [lstm.main_race, lstm.variants_race, lstm.small_batches])
def test_case_gives_ours_and_theirs_the_same_allocator(fake, case):
    found = case(BOOK, quick=False)
    races = found.get("races") or [found["float32"]]
    for race in races:
        assert {one["allocator"] for one in race} == {"kept"}
        assert {one["implementation"] for one in race} >= {"keras", "cellerate-cpu"}
    assert all(one["settings"].startswith("keeps freed memory") for race in races for one in race)
    stock = found.get("stock_allocator", [])
    by_whom = [
        {one["backend"] for one in stock if one["implementation"] == whom}
        for whom in ("keras", "cellerate-cpu")
    ]
    assert by_whom[0] == by_whom[1]
    assert bool(by_whom[0]) == (case is lstm.main_race)


@pytest.mark.parametrize("policy", lstm_race.BOUNDS)
def test_contestants_have_every_way_that_may_be_the_fastest(policy):
    found = {way(one) for one in lstm.contestants_of(128, policy)}
    for backend, jit, unroll in (
        ("tensorflow", "auto", False),
        ("tensorflow", True, False),
        ("tensorflow", True, True),
        ("jax", "auto", False),
        ("jax", "auto", True),
        ("torch", "auto", False),
        ("torch", True, False),
    ):
        assert (backend, "keras", policy, "kept", jit, unroll) in found
    for jit in ("auto", True):
        assert ("torch", "torch.nn.LSTM", policy, "kept", jit, False) in found


def test_small_batches_have_keras_on_torch(fake):
    found = lstm.small_batches(BOOK, quick=False)
    assert len(found["races"]) == 4
    for race in found["races"]:
        assert any((one["backend"], one["implementation"]) == ("torch", "keras") for one in race)


@pytest.mark.skipif(allocator_found() == "unknown", reason="the C library does not tell how it allocates")
@pytest.mark.parametrize("allocator", processes.ALLOCATORS)
def test_process_has_the_allocator_that_it_was_given(allocator, monkeypatch):
    # Whatever this process itself was started with.
    monkeypatch.setenv("MALLOC_MMAP_MAX_", "0" if allocator == "stock" else "65536")
    program = (
        "from cellerate.observe.bench.contestant import allocator_found; print(f'\"{allocator_found()}\"')"
    )
    process = processes.Process([sys.executable, "-c", program], "probe", allocator)
    assert process.answer(60) == allocator
    process.close()


def test_process_that_does_not_answer_is_refused_and_ended():
    process = processes.Process([sys.executable, "-c", "input(); input()"], "sleeper")
    with pytest.raises(processes.RefusedError, match=r"did not compile in 0\.2 s"):
        process.ask("anything", 0.2, "compile")
    assert process._process.poll() is not None


def test_process_that_says_why_it_cannot_is_refused():
    process = processes.Process([sys.executable, "-c", 'print(\'{"refused": "no such package"}\')'], "none")
    with pytest.raises(processes.RefusedError, match="no such package"):
        process.answer(60)


def about(jobs: list[str], **errors: float) -> dict[str, Any]:
    return {"jobs": jobs, "errors": errors, "allocator": "kept"}


@pytest.mark.parametrize("error", [0.5, float("nan")])
def test_check_takes_out_a_job_that_is_wrong_or_unchecked(error):
    found = about(["loop", "step", "predict"], loop=error, step=1e-6)
    generation.check("jax", found)
    assert found["jobs"] == ["step"]
    assert "root mean square" in found["left_out"]["loop"]
    assert found["left_out"]["predict"] == "nothing has checked what it computes"
    found = about(["logits int8", "sequence int8"], **{"logits int8": error, "sequence int8": 0.0})
    found["about_s"] = {"sequence int8": 3e-5}
    generation.check("openvino", found)
    # Over a text what is wrong averages out.
    assert not found["jobs"] and "a character took about 30 µs" in found["left_out"]["sequence int8"]
    with pytest.raises(RuntimeError, match="cellerate, generate float32"):
        generation.check("cellerate", about(["generate float32"], float32=error))
    with pytest.raises(RuntimeError, match="nothing has checked"):
        generation.check("cellerate", about(["generate float32"]))


class FakeGenerator:
    """A contestant of the generation contest."""

    def __init__(self, folder: Path, name: str) -> None:
        if name == "openvino":
            raise processes.RefusedError("No module named 'openvino'")
        self.name = name
        jobs = {
            "cellerate": [f"{job} {p}" for p in PRECISIONS for job in ("generate", "loop")],
            "tensorflow": ["predict", "loop"],
        }.get(name, ["loop float32", "logits float32"] if name in generation.RUNTIMES else ["predict"])
        allocator = "stock" if name == FakeGenerator.without else "kept"
        self.about = {"jobs": jobs, "errors": {}, "allocator": allocator, "version": "1"}

    without = ""

    def run(self, job: str, count: int) -> tuple[list[float], int]:
        return [1e-5, 3e-5], 1 if job.startswith("logits") else count

    def close(self) -> None:
        pass


@pytest.fixture
def fake_generation(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(generation, "Contestant", FakeGenerator)
    monkeypatch.setattr(generation.subprocess, "run", lambda *_, **__: None)
    monkeypatch.setattr(generation, "process", lambda folder, runs: {"int8": {"median_s": 0.2}})
    monkeypatch.setattr(processes, "SPINNING_S", 0)


def test_generation_records_everybody_and_the_table_shows_who_could_not(fake_generation):
    found = generation.run(quick=True)
    (size,) = found["sizes"]
    assert set(size["contestants"]) == {"cellerate", *generation.RUNTIMES, *BACKENDS}
    assert size["contestants"]["openvino"] == {"refused": "No module named 'openvino'", "jobs": []}
    rows = {row[0]: row[1] for row in by_case.generation(found)[1:]}
    assert rows["OpenVINO"] == "No module named 'openvino'"
    assert rows["LiteRT float32, a step from Python, median and p99"] == "20.0, 30.0 µs"


@pytest.mark.parametrize("name", ["cellerate", "jax"])
def test_generation_when_one_has_another_allocator_ends(fake_generation, monkeypatch, name):
    monkeypatch.setattr(FakeGenerator, "without", name)
    with pytest.raises(RuntimeError, match="stock"):
        generation.run(quick=True)


@pytest.mark.parametrize("error", [None, 1.0, float("nan")])
def test_kernel_that_is_wrong_or_unchecked_is_not_timed(error):
    with pytest.raises(RuntimeError, match="onednn, float32"):
        kernel.check("onednn", "float32", error)


def test_step_table_shows_ways_allocators_and_who_could_not(fake, monkeypatch):
    def answer(self):
        if self.settings["unroll"]:
            raise processes.RefusedError("did not compile in 60 s")
        return TRUTH

    monkeypatch.setattr(fake, "first_losses", answer)
    head, *rows = by_case.step(lstm.main_race(BOOK, quick=False))
    cells = {row[0]: row[1:] for row in rows}
    assert head == ["Thousand characters/s", "H=128", "H=512"]
    assert cells["Keras on jax, float32"] == ["1280"] * 2
    assert cells["Keras on tensorflow, bfloat16, `jit_compile=True`"] == ["1280"] * 2
    assert cells["torch.nn.LSTM loop, float32, `torch.compile`"] == ["1280"] * 2
    assert cells["Keras on jax, float32, the allocator as it comes"] == ["1280", ""]
    assert cells["**Cellerate** on jax, float32, the allocator as it comes"] == ["1280", ""]
    assert cells["Keras on jax, float32, `unroll=True`"] == ["did not compile in 60 s (H=128)"] * 2


def test_bench_is_expected_to_take_forty_minutes_at_most():
    assert sum(cases.CASES[name].expected_s for name in cases.BENCH) <= 40 * 60


def test_process_that_ends_tells_what_it_said_last(capsys):
    program = "import sys; print('loading', file=sys.stderr); sys.exit('no memory left')"
    process = processes.Process([sys.executable, "-c", program], "small")
    with pytest.raises(RuntimeError, match=r"^small ended with 1: no memory left$"):
        process.answer(60)
    process.close()
    assert "loading" in capsys.readouterr().err


def test_result_of_a_program_is_its_last_line_and_one_that_fails_ends_the_case_with_its_words(monkeypatch):
    source = "import sys; print('loading'); print('[3]'); sys.exit(sys.argv[1] != 'works' and sys.argv[1])"
    monkeypatch.setattr(processes, "program", lambda _, *given: [sys.executable, "-c", source, *given])
    assert processes.result_of("any", "works") == [3]
    with pytest.raises(SystemExit, match=r"^any breaks: breaks"):
        processes.result_of("any", "breaks")


class Answering:
    """A contestant of the inference race: it takes a millisecond a call, or is too late."""

    def __init__(self, late):
        self.late = late

    def ask(self, question, *_):
        if self.late:
            raise processes.RefusedError("did not compile in 240 s")
        if "calls" in question:
            return [1e-3] * question["calls"]
        return {"float32": {"way": "as it is", "about_s": 1e-3, "error": 0.0}}


def test_late_contestant_leaves_the_race_and_the_others_go_on():
    contestants = {"cellerate": Answering(late=False), "torch": Answering(late=True)}
    cell = inference.race(contestants, "text 512", 1, seconds=0.01, rounds=1)
    assert [one["contestant"] for one in cell["records"]] == ["cellerate"]
    assert cell["left_out"] == {"torch": "did not compile in 240 s"}
    assert list(contestants) == ["cellerate"]
    with pytest.raises(processes.RefusedError):
        inference.race({"cellerate": Answering(late=True)}, "text 512", 1, seconds=0.01, rounds=1)
