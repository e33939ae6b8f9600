"""The run: what is done, what is left out, and what an end at any moment leaves on disk.

Stages here are stand-ins, the baseline is a real one that was measured once; the tests in `stages/` run the real ones.
"""

import errno
import os
import shlex
import shutil

import keras
import pytest

from cellerate.data.settings import TableOptions
from cellerate.errors import ConfigError, DataError, OutputError
from cellerate.models.storage import load_model
from cellerate.optimization import schedule, workflow
from cellerate.optimization.listener import StageListener
from cellerate.optimization.stages.base import NotNeededError
from cellerate.optimization.state import load_state
from cellerate.report.record import TrainingStep, read_run
from cellerate.tasks.settings import ReadingOptions
from support.optimization.stages import Stand, statuses

pytestmark = [pytest.mark.keras, pytest.mark.usefixtures("here_probe", "quick")]


def test_baseline_measures_keras_only_and_is_not_repeated(go, stands, here_probe):
    found = go()
    assert here_probe.asked == []
    assert statuses(found) == {
        "baseline": "done",
        "kernels": "done",
        "quantize": "done",
        "prune": "done",
    }
    original = found.candidates[0]
    assert (original.id, original.file, original.passes_gate) == ("original", None, True)
    assert [speed.way for speed in original.speeds] == [
        "predict_on_batch",
        "predict",
    ]  # the faster one comes first
    assert original.quality.low < original.quality.value < original.quality.high
    (step,) = found.training_steps
    assert (step.way, step.batch_size, step.length) == ("Keras, float32", 8, 10)
    assert step.step_p20_ms <= step.step_ms <= step.step_p80_ms
    assert any("LSTM" in path or "lstm" in path for path, _, _ in found.explanation)


def test_finished_run_reads_back_unchanged(go, stands, out):
    found = go()
    assert found.status == "finished"
    assert found.verdict.sentence == "So."
    assert read_run(out) == found


def test_next_call_skips_finished_stages(go, stands):
    go(only=["kernels", "prune"])
    assert Stand.begun == ["kernels", "prune"]
    found = go()
    assert Stand.begun == ["kernels", "prune", "quantize"]
    assert [one.name for one in found.passes] == ["baseline", "kernels", "quantize", "prune"]


def test_call_for_other_stages_keeps_earlier_results(go, stands):
    go()
    found = go(only=["quantize"])
    assert list(statuses(found)) == ["baseline", "kernels", "quantize", "prune"]
    found = go(skip=["kernels"])
    assert list(statuses(found)) == ["baseline", "kernels", "quantize", "prune"]
    assert Stand.begun == ["kernels", "quantize", "prune"]


def test_failed_stage_is_reported_and_undone_and_the_others_run(go, stands, out):
    def fail(context):
        context.state.choices.training_precision = "mixed_bfloat16"
        context.state.choices.batch_size = 7
        context.state.training_steps.append(TrainingStep("x", 1, None, 1.0, 1.0, 1.0, 1.0))
        raise RuntimeError("no kernel for it\nand a long explanation")

    stands["kernels"].does = staticmethod(fail)
    found = go()
    assert statuses(found)["kernels"] == "failed"
    assert found.passes[1].reason == "RuntimeError: no kernel for it"
    assert statuses(found)["quantize"] == statuses(found)["prune"] == "done"
    assert len(found.training_steps) == 1
    choices = load_state(out, {}).choices
    assert (choices.training_precision, choices.batch_size) == ("float32", 8)
    # The next call retries only the failed stage.
    stands["kernels"].does = staticmethod(lambda context: None)
    assert statuses(go())["kernels"] == "done"
    assert Stand.begun == ["kernels", "quantize", "prune", "kernels"]


def test_stage_that_raises_without_a_message_has_a_reason(go, stands):
    def fail(context):
        raise AssertionError

    stands["prune"].does = staticmethod(fail)
    assert go().passes[-1].reason == "AssertionError"


def test_stage_with_nothing_to_do_is_skipped_with_a_reason(go, stands):
    def nothing(context):
        raise NotNeededError("there are no units")

    stands["prune"].does = staticmethod(nothing)
    found = go().passes[-1]
    assert (found.status, found.reason, found.kept) == ("skipped", "there are no units", False)


def test_stage_without_time_is_skipped_and_runs_with_a_larger_budget(go, stands):
    stands["quantize"].cost = 500.0
    found = go(time_budget=300.0)
    assert statuses(found) == {
        "baseline": "done",
        "kernels": "done",
        "quantize": "skipped",
        "prune": "done",
    }
    assert found.passes[2].reason == "there was no time for it: it needs about 8 min 20 s"
    assert (found.passes[2].needs_s, found.passes[2].expected_s) == (500.0, None)
    assert found.passes[2].seconds < 0.1
    assert found.status == "finished"
    (told,) = found.verdict.warnings
    assert told.startswith(
        "Left out for lack of time, with the least that each needs: Quantize (8 min 20 s)."
    )
    # The suggested budget is enough, and only just.
    budget = float(told.partition("time budget of ")[2].split()[0])
    assert 500 < budget < 700
    again = go(time_budget=budget)
    assert statuses(again)["quantize"] == "done"
    assert again.verdict.warnings == ()
    assert Stand.begun == ["kernels", "prune", "quantize"]


def test_time_of_earlier_calls_counts_against_the_budget(go, stands, out):
    state = load_state(out, {})
    state.seconds = 5000.0
    workflow.save_state(state, out)
    stands["prune"].cost = 1.0
    assert statuses(go(time_budget=4000.0)) == dict.fromkeys(("kernels", "quantize", "prune"), "skipped") | {
        "baseline": "done"
    }
    assert go(time_budget=9000.0).seconds > 5000.0


def test_ctrl_c_in_a_stage_keeps_earlier_stages_and_the_next_call_resumes(go, stands, out):
    def interrupt(context):
        context.state.choices.packed_precision = "int8"
        context.state.training_steps.append(TrainingStep("x", 1, None, 1.0, 1.0, 1.0, 1.0))
        raise KeyboardInterrupt

    stands["quantize"].does = staticmethod(interrupt)
    found = go()
    assert (found.status, found.verdict) == ("interrupted", None)
    assert statuses(found) == {"baseline": "done", "kernels": "done"}
    assert read_run(out) == found
    state = load_state(out, {})
    assert (state.choices.packed_precision, len(state.training_steps)) == ("float32", 1)
    stands["quantize"].does = staticmethod(lambda context: None)
    found = go()
    assert found.status == "finished"
    assert Stand.begun == ["kernels", "quantize", "quantize", "prune"]
    assert not [path.name for path in out.rglob(".*")]


def test_sigterm_acts_as_ctrl_c_and_the_old_handler_returns(go, stands):
    import signal

    before = signal.getsignal(signal.SIGTERM)
    stands["kernels"].does = staticmethod(lambda context: os.kill(os.getpid(), signal.SIGTERM))
    assert go().status == "interrupted"
    assert signal.getsignal(signal.SIGTERM) is before


def test_ctrl_c_in_the_verdict_keeps_every_stage(go, stands, monkeypatch):
    def interrupt(context):
        raise KeyboardInterrupt

    monkeypatch.setattr(workflow, "verdict", interrupt)
    found = go()
    assert found.status == "interrupted"
    assert set(statuses(found).values()) == {"done"}


def test_failed_baseline_ends_the_run_and_leaves_nothing_to_resume(go, stands, tmp_path, monkeypatch):
    def fail(self, context):
        raise ConfigError("no baseline")

    monkeypatch.setattr(schedule.Baseline, "run", fail)
    with pytest.raises(ConfigError, match="no baseline"):
        go(folder=tmp_path / "new")
    assert not (tmp_path / "new").exists()


def test_folder_of_another_run_is_refused_and_stays_unchanged(go, stands, out, made, tmp_path):
    before = (out / "state.json").read_bytes()
    (tmp_path / "t.txt").write_text((made / "t.txt").read_text() * 2)
    for changed, said in (
        ({"seed": 1}, "settings"),
        ({"max_quality_loss": 0.5}, "settings"),
        ({"data": tmp_path / "t.txt"}, "data"),
        ({"model": made / "embed.keras", "data": made / "l.txt"}, "data, model"),
    ):
        with pytest.raises(ConfigError, match=f"another run: {said} differ"):
            go(**changed)
    assert (out / "state.json").read_bytes() == before


def test_model_saved_again_resumes_its_run(go, stands, made, tmp_path):
    model, record = load_model(made / "text.keras")
    workflow.save_model(model, tmp_path / "again.keras", record)
    assert (tmp_path / "again.keras").read_bytes() != (made / "text.keras").read_bytes()
    go(model=tmp_path / "again.keras")
    found = go(keep=[0.5, 0.75])
    assert "--keep" not in found.command
    # The folder keeps a model from memory, so its run resumes too.
    go(model=model, record=record)
    assert Stand.begun == ["kernels", "quantize", "prune"]


def test_record_beside_a_model_file_raises_config_error(go, stands, made):
    with pytest.raises(ConfigError, match="has its own"):
        go(record=load_model(made / "text.keras")[1])


def test_model_that_the_run_would_overwrite_is_refused(go, stands, out, made):
    shutil.copy(made / "text.keras", out / "optimized.keras")
    with pytest.raises(ConfigError, match="choose another folder"):
        go(model=out / "optimized.keras")


def test_candidate_as_the_model_of_its_own_run_is_refused_and_kept(go, stands, out, made):
    (out / "candidates").mkdir(exist_ok=True)
    candidate = shutil.copy(made / "text.keras", out / "candidates" / "pruned.keras")
    with pytest.raises(ConfigError, match="choose another folder"):
        go(model=candidate, restart=True)
    assert candidate.exists()


def test_refused_model_in_memory_keeps_the_saved_model(go, stands, out, made):
    model, record = load_model(made / "text.keras")
    go(model=model, record=record)
    before = (out / "original.keras").read_bytes()
    other = keras.models.clone_model(model)
    other.set_weights([2 * weights for weights in model.get_weights()])
    with pytest.raises(ConfigError, match="another run: model differ"):
        go(model=other, record=record)
    assert (out / "original.keras").read_bytes() == before
    assert not (out / "given.keras").exists()


def test_tables_with_gaps_are_read_as_the_options_say_and_the_command_repeats_it(
    go, stands, made, tmp_path, monkeypatch
):
    monkeypatch.setenv("CELLERATE_CACHE", str(tmp_path / "cache"))
    gaps = tmp_path / "gaps.csv"
    head, first, *rows = (made / "s.csv").read_text().splitlines()
    gaps.write_text("\n".join([head, first, "," + rows[0].split(",")[1], *rows[1:]]) + "\n")
    given = {"model": made / "series.keras", "data": gaps, "folder": tmp_path / "new", "only": ["kernels"]}
    with pytest.raises(DataError, match="data row 2: column 'load' has no value"):
        go(**given)
    assert not (tmp_path / "new").exists()
    found = go(**given, reading=ReadingOptions(missing="interpolate"), table=TableOptions(separator=","))
    assert statuses(found) == {"baseline": "done", "kernels": "done"}
    assert {"missing": "interpolate", "separator": ","}.items() <= found.settings.items()
    words = shlex.split(found.command)
    assert words[words.index("--missing") + 1] == "interpolate"
    assert words[words.index("--separator") + 1] == ","


def test_options_of_tables_are_refused_for_texts(go, stands):
    with pytest.raises(ConfigError, match="leave out missing='drop', separator=';'"):
        go(reading=ReadingOptions(missing="drop"), table=TableOptions(separator=";"), restart=True)


def test_restart_discards_earlier_results(go, stands, out, here_probe):
    (out / "candidates").mkdir(exist_ok=True)
    (out / "candidates" / "old.cell").write_bytes(b"old")
    go(seed=1, restart=True)
    asked = [kind for kind, _ in here_probe.asked]
    assert asked == ["open", "open", "trainer", "explain", "use", "turn", "judge"]
    assert not (out / "candidates" / "old.cell").exists()


def test_an_output_that_is_a_file_raises_output_error(go, stands, tmp_path):
    (tmp_path / "file").write_text("mine")
    with pytest.raises(OutputError, match="it is a file"):
        go(folder=tmp_path / "file")
    with pytest.raises(OutputError, match="not a folder"):
        go(folder=tmp_path / "file" / "out")
    assert (tmp_path / "file").read_text() == "mine"


def test_full_disk_raises_output_error_and_keeps_the_old_files(go, stands, out, monkeypatch):
    go(only=["kernels"])
    before = {path.name: path.read_bytes() for path in out.iterdir() if path.is_file()}

    def full(*_):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    with monkeypatch.context() as patch:
        from cellerate.optimization import state

        patch.setattr(state.Path, "write_bytes", full)
        with pytest.raises(OutputError, match="disk is full"):
            go()
    assert {path.name: path.read_bytes() for path in out.iterdir() if path.is_file()} == before
    assert Stand.begun == ["kernels", "quantize"]
    assert go().status == "finished"


@pytest.mark.parametrize("said", ["", "other processes use 3.0 of 4 processors now: figures are too low"])
def test_busy_machine_is_reported_first(go, stands, monkeypatch, said):
    heard = []

    class Heard(StageListener):
        def message(self, text):
            heard.append(text)

        def start(self, stages, left_s):
            heard.append("start")

    monkeypatch.setattr(workflow, "busy_now", lambda: said)
    # A refused run has measured nothing, so the listener hears nothing.
    with pytest.raises(ConfigError):
        go(seed=1, listener=Heard())
    assert heard == []
    go(listener=Heard())
    going_on = "continuing the run in "
    assert [one.partition(going_on)[1] or one for one in heard] == [*filter(None, [said]), going_on, "start"]


def test_listener_gets_every_stage_and_stops_at_any_end(go, stands):
    class Heard(StageListener):
        def __init__(self):
            self.told = []

        def start(self, stages, left_s):
            assert 90_000 < left_s <= 100_000
            self.told.append(("start", *stages))

        def begin(self, title):
            self.told.append(("begin", title))

        def end(self, found):
            self.told.append(("end", found.name, found.status))

        def stop(self):
            self.told.append(("stop",))

    def interrupt(context):
        raise KeyboardInterrupt

    stands["prune"].does = staticmethod(interrupt)
    heard = Heard()
    go(only=["kernels", "prune"], listener=heard)
    assert heard.told == [
        ("start", "Kernels", "Prune", "Verdict"),
        ("begin", "Kernels"),
        ("end", "kernels", "done"),
        ("begin", "Prune"),
        ("stop",),
    ]
