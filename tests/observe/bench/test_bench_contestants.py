"""The real contestants that need no Keras: what they prepare is right, and they answer what they are asked."""

import dataclasses
import functools
import io
import json

import numpy as np
import pytest

from cellerate.errors import BackendError, ConfigError
from cellerate.observe.bench import cases, contestant, generating, inferring, model, plain_torch
from cellerate.observe.bench.cases import Contestant, contestants
from cellerate.observe.bench.jobs import Job, timed_anew
from cellerate.observe.bench.process import Process, check_other, command_of


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """The quick model, and what float64 says of it."""
    made = tmp_path_factory.mktemp("bench")
    model.build(made, model.QUICK)
    return made


@pytest.fixture
def started(folder):
    """Starts a real contestant as a process."""
    begun = []

    def start(case, name, **more):
        sizes = dataclasses.asdict(model.QUICK)
        told = {"case": case, "folder": str(folder), "sizes": sizes} | more
        begun.append(Process(command_of(Contestant(name, name), told)))
        return begun[-1]

    yield start
    for process in begun:
        process.close()


def right(jobs):
    """The jobs, each with its errors within the bounds, in every way, and each run once."""
    found = list(jobs)
    assert all(isinstance(job, Job) for job in found), found
    for job in found:
        bound = contestant.BOUNDS["training" if job.work == "training" else job.precision]
        for way, run in job.ways.items():
            assert job.error(way) <= bound, (job.work, job.precision, job.call, way)
            assert all(second > 0 for second in run(1))
    return {(job.work, job.precision, job.call) for job in found}


def test_packed_model_is_right_in_every_batch_and_precision(folder):
    expected = {
        (work, precision, "predict") for work in ("1 row", "4 rows") for precision in ("float32", "int8")
    }
    assert right(inferring.packed_jobs(folder, model.QUICK)) == expected


def test_packed_model_is_right_character_by_character(folder):
    assert right(generating.packed_jobs(folder, model.QUICK)) == {
        ("one stream", precision, call)
        for precision in ("float32", "int8")
        for call in ("generate, 500 in a call", "a call a character")
    }


@pytest.mark.parametrize(
    ("name", "package"),
    [("onnxruntime", "onnxruntime"), ("openvino", "openvino"), ("litert", "ai_edge_litert")],
)
def test_other_runtime_is_right_in_both_cases(folder, name, package):
    pytest.importorskip(package)
    assert right(inferring.runtime_jobs(folder, model.QUICK, name))
    assert right(generating.runtime_jobs(folder, model.QUICK, name))


def test_runtime_that_an_export_refuses_is_left_out_with_the_reason(folder, monkeypatch, tmp_path):
    from cellerate.tasks import exporting

    def refused(*_, **__):
        raise BackendError("it needs a package")

    monkeypatch.setattr(exporting, "export", refused)
    # No file is there yet.
    for file in folder.iterdir():
        if file.suffix in (".npz", ".cell"):
            (tmp_path / file.name).write_bytes(file.read_bytes())
    found = [
        *inferring.runtime_jobs(tmp_path, model.QUICK, "litert"),
        *generating.runtime_jobs(tmp_path, model.QUICK, "litert"),
    ]
    assert [each[2] for each in found] == ["it needs a package"] * 6


def test_process_answers_what_it_is_asked(started):
    process = started("infer", "cellerate")
    about = process.answer(60)
    assert about["protocol"] == contestant.PROTOCOL
    assert about["allocator"] in ("kept", "unknown")
    assert about["versions"]["cellerate"]
    job = about["jobs"][0]
    assert job["error"] <= job["bound"] == 1e-4
    (way,) = process.ask({"number": job["number"]}, 60)
    seconds = process.ask({"number": job["number"], "way": way, "samples": 5, "each": 3}, 60)
    assert len(seconds) == 5 and min(seconds) > 0


def test_yardstick_takes_about_the_same_again_and_again(started):
    process = started("infer", "yardstick")
    (job,) = process.answer(60)["jobs"]
    asked = {"number": 0, "way": "yardstick", "samples": 20, "each": 1}
    times = [min(process.ask(asked, 60)) for _ in range(5)]
    assert job["work"] == "yardstick"
    assert max(times) < 1.5 * min(times)


def test_builder_makes_the_model_and_says_what_multiply_adds_reach(started, tmp_path):
    small = dataclasses.asdict(dataclasses.replace(model.QUICK, units=17))
    peaks = started("build", "build", folder=str(tmp_path), sizes=small).answer(60)["peaks"]
    assert {path.name for path in tmp_path.iterdir()} == {"truth.npz", "float32.cell", "int8.cell"}
    assert set(peaks) in ({"float32", "int8"}, set())
    assert all(peak > 1e8 for peak in peaks.values())


def test_contestant_that_cannot_be_says_why(started):
    with pytest.raises(BackendError, match=r"^BackendError: unknown backend 'nothing'"):
        started("train", "keras-nothing").answer(60)


def test_nothing_is_run_for_its_time_before_it_is_asked_for(monkeypatch):
    ran = []

    def run(way, seconds, count):
        ran.append(way)
        return [seconds] * count

    ways = {"slow": functools.partial(run, "slow", 1e-2), "quick": functools.partial(run, "quick", 1e-3)}
    wrong = {"slow": 0.0, "quick": 1.0}
    jobs = [
        Job("1 row", "a call", "float32", ways, wrong.__getitem__, 1),
        ("1 row", "int8", "no int8"),
        Job("1 row", "a call", "int8", ways, lambda _: 0.0, 1),
    ]
    monkeypatch.setattr("sys.stdin", [])
    answers = io.StringIO()
    contestant.serve(jobs, answers)
    assert ran == []
    first, refused, second = json.loads(answers.getvalue())["jobs"]
    # Of all its ways the worst counts.
    assert (first["error"], second["error"], second["number"]) == (1.0, 0.0, 1)
    assert refused == {"work": "1 row", "precision": "int8", "call": "", "refused": "no int8"}

    questions = [{"number": 1}, {"number": 1, "way": "slow", "samples": 2, "each": 3}]
    monkeypatch.setattr("sys.stdin", map(json.dumps, questions))
    answers = io.StringIO()
    contestant.serve(jobs, answers)
    _, tried, seconds = map(json.loads, answers.getvalue().splitlines())
    assert tried == {"slow": 1e-2, "quick": 1e-3}
    assert seconds == pytest.approx([1e-2, 1e-2])


def test_work_that_is_made_anew_is_made_once_a_turn():
    made = []

    def make():
        made.append(0)
        place = len(made) - 1

        def work():
            made[place] += 1

        return work

    run = timed_anew(make)
    assert len(run(3)) == 3 and len(run(2)) == 2
    # And each is warm before it is timed.
    assert made == [4, 3]


def test_truth_of_training_is_the_gradient_of_the_loss():
    sizes = model.Sizes(5, 3, 4, steps=3, batch=2)
    random = np.random.default_rng(0)
    weights = [each.astype(np.float64) for each in model._draw_weights(sizes)]
    ids, targets = random.integers(0, 5, (2, 2, 3))
    _, gradients, _ = model._gradients(weights, ids, targets)
    for place, gradient in enumerate(gradients):
        direction = random.standard_normal(gradient.shape)
        losses = []
        for step in (1e-5, -1e-5):
            moved = [each + (step * direction if n == place else 0) for n, each in enumerate(weights)]
            losses.append(model._gradients(moved, ids, targets)[0])
        assert (losses[0] - losses[1]) / 2e-5 == pytest.approx(
            float((gradient * direction).sum()), rel=1e-5, abs=1e-9
        )


@pytest.mark.parametrize("found", [[1.0, np.nan, 3.0], [np.inf, 2.0, 3.0], [1.0, 2.0, 3.1]])
def test_loss_that_is_no_number_or_wrong_is_beyond_the_bound(found):
    truth = {"losses": np.array([1.0, 2.0, 3.0]), "losses_sparse": np.array([1.0, 2.1, 3.0])}
    assert not model.error_of_losses(found, truth) <= contestant.BOUNDS["training"]


def test_losses_of_sparse_steps_are_right_only_where_they_may_be():
    truth = {"losses": np.array([1.0, 2.0, 3.0]), "losses_sparse": np.array([1.0, 2.1, 3.0])}
    assert model.error_of_losses([1.0, 2.1, 3.0], truth, sparse=True) == 0
    assert model.error_of_losses([1.0, 2.0, 3.0], truth, sparse=True) == 0
    assert model.error_of_losses([1.0, 2.1, 3.0], truth) == pytest.approx(0.05)


def test_every_case_has_ours_first_and_every_known_peer():
    for case in cases.CASES:
        found = contestants(case)
        assert found[0].ours and len({one.name for one in found}) == len(found)
        titles = {one.title for one in found if not one.ours}
        assert {"Keras on jax", "Keras on tensorflow", "Keras on torch", "torch.nn.LSTM"} <= titles
        if case != "train":
            assert {"ONNX Runtime", "OpenVINO", "LiteRT"} <= titles
    assert [one.name for one in contestants("train", ["jax"])] == ["cellerate-jax", "keras-jax", "torch"]
    both = contestants("infer", ["jax"], "/old/bin/python")[:2]
    assert [(one.name, one.python) for one in both] == [("cellerate", ""), ("cellerate", "/old/bin/python")]


@pytest.mark.parametrize("python", ["/no/such/python", "/bin/false"])
def test_interpreter_without_a_cellerate_that_fits_is_refused(python):
    with pytest.raises(ConfigError, match=python):
        check_other(python)


@pytest.mark.keras
def test_torch_alone_is_right_in_every_case(folder):
    pytest.importorskip("torch")
    assert right(plain_torch.training_jobs(folder, model.QUICK))
    assert right(inferring.torch_jobs(folder, model.QUICK))
    assert right(generating.torch_jobs(folder, model.QUICK))


@pytest.mark.keras
@pytest.mark.backends
@pytest.mark.parametrize("accelerated", [False, True])
def test_training_takes_the_steps_of_float64(folder, accelerated):
    from cellerate.observe.bench.training import fit_jobs

    assert right(fit_jobs(folder, model.QUICK, accelerated)) == {("training", "float32", "a batch of fit")}


@pytest.mark.keras
@pytest.mark.backends
def test_keras_is_right_in_use(folder):
    assert right(inferring.keras_jobs(folder, model.QUICK)) == {
        ("1 row", "float32", "predict_on_batch"), ("4 rows", "float32", "predict_on_batch")
    }  # fmt: skip
    assert right(generating.keras_jobs(folder, model.QUICK)) == {
        ("one stream", "float32", "predict a character"), ("one stream", "float32", "predict_on_batch a character")
    }  # fmt: skip


@pytest.mark.keras
def test_packed_file_holds_what_packing_the_keras_model_would(folder):
    from cellerate.keras_graph.to_program import read_program
    from cellerate.observe.bench.training import keras_model

    truth = model.read_truth(folder)
    read = read_program(keras_model(truth, model.QUICK))
    own = model.program_of(model.weights_of(truth))
    assert [node.op for node in read.nodes if node.op != "activation"] == [node.op for node in own.nodes]
    theirs, ours = (next(node for node in program.nodes if node.op == "lstm") for program in (read, own))
    # What an output holds at a masked step differs between backends, and nothing is masked here.
    assert {**theirs.options, "masked_output": ""} == {**ours.options, "masked_output": ""}
