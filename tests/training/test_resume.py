"""Runs that are interrupted, resumed, refused or started over another run."""

import signal

import keras
import numpy as np
import pytest

from cellerate.data.windows.text_windows import StreamBatches, TextBatches
from cellerate.errors import CheckpointError, ConfigError, OutputError
from cellerate.files import exclusive
from cellerate.models.storage import load_model
from cellerate.models.text import build_text_model
from cellerate.training.checkpoint_folder import CheckpointFolder
from cellerate.training.run import RunOptions
from cellerate.training.start import check_start, run_folder
from support.runs.training_runs import IDS, Heard, StopAt, curve, held_out, losses, run

pytestmark = [pytest.mark.keras, pytest.mark.backends]


@pytest.mark.parametrize(
    ("step", "carry"),
    [
        *((7, False), ("last", False), (1, True)),
        *(pytest.param(*rest, marks=pytest.mark.slow) for rest in ((1, False), (7, True), ("last", True))),
    ],
)
def test_train_resumed_within_an_epoch_has_the_same_curve(tmp_path, step, carry):
    def source():
        ids = IDS[:1000]
        return (
            StreamBatches(ids, length=8, batch_size=8)
            if carry
            else TextBatches(ids, length=10, batch_size=8, seed=1)
        )

    step = len(source()) if step == "last" else step
    common = {"validation": None if carry else held_out(), "carry": carry, "clipnorm": 1.0, "epochs": 3}

    def trained(name, **further):
        metrics = [keras.metrics.SparseCategoricalAccuracy(name="accuracy")]
        return run(tmp_path / name, source=source(), metrics=metrics, **common, **further)

    trained("whole.keras")
    cut = trained("cut.keras", display=StopAt(1, step))
    assert cut.status == "interrupted"
    position = CheckpointFolder(cut.folder).newest().position
    assert (position.epoch, position.batch) == ((1, step) if step < len(source()) else (2, 0))
    again = trained("cut.keras", resume=True)
    assert again.status == "finished"
    assert all(0 < accuracy < 1 for *_, accuracy, _ in losses(tmp_path / "cut.keras"))
    assert curve(tmp_path / "cut.keras") == curve(tmp_path / "whole.keras")
    assert losses(tmp_path / "cut.keras") == losses(tmp_path / "whole.keras")
    one, other = (load_model(tmp_path / f"{name}.keras")[0] for name in ("whole", "cut"))
    for a, b in zip(one.get_weights(), other.get_weights(), strict=True):
        np.testing.assert_array_equal(a, b)


def test_train_resumed_keeps_the_counters_of_early_stopping_and_plateau(tmp_path):
    # The loss cannot improve, so only the counters decide.
    common = {
        "learning_rate": 1e-9,
        "epochs": 12,
        "patience": 5,
        "plateau_patience": 2,
        "validation": held_out(),
        "optimizer": "sgd",
    }
    whole = run(tmp_path / "whole.keras", **common)
    cut = run(tmp_path / "cut.keras", display=StopAt(3, 2), **common)
    assert cut.status == "interrupted"
    again = run(tmp_path / "cut.keras", resume=True, **common)
    assert again.status == whole.status == "stopped early"
    assert len(again.history) == len(whole.history) < 12
    rates = [r["learning_rate"] for r in whole.history]
    assert rates[-1] < rates[0]
    assert [r["learning_rate"] for r in again.history] == rates


def test_train_interrupted_as_it_stops_early_is_ended_by_a_resume(tmp_path):
    common = {
        "learning_rate": 1e-9,
        "epochs": 12,
        "patience": 2,
        "validation": held_out(),
        "optimizer": "sgd",
    }
    whole = run(tmp_path / "whole.keras", **common)
    last = len(whole.history) - 1
    cut = run(tmp_path / "cut.keras", display=StopAt(last, whole.history[last]["steps"]), **common)
    assert (whole.status, cut.status) == ("stopped early", "interrupted")
    again = run(tmp_path / "cut.keras", resume=True, **common)
    assert (again.status, again.best_epoch) == ("stopped early", whole.best_epoch)
    assert losses(tmp_path / "cut.keras") == losses(tmp_path / "whole.keras")
    # With more patience it goes on.
    further = run(tmp_path / "cut.keras", resume=True, **common | {"patience": 4})
    assert len(further.history) > len(whole.history)


def test_train_on_after_the_last_epoch_continues_the_curve(tmp_path):
    run(tmp_path / "whole.keras", epochs=3)
    run(tmp_path / "two.keras", epochs=1)
    run(tmp_path / "two.keras", epochs=3, resume=True)
    assert curve(tmp_path / "two.keras") == curve(tmp_path / "whole.keras")


def test_train_resumed_with_nothing_left_to_do_says_so(tmp_path):
    run(tmp_path / "m.keras", epochs=1)
    with pytest.raises(ConfigError, match="already trained 1 epoch:"):
        run(tmp_path / "m.keras", epochs=1, resume=True)


def test_train_resumed_beyond_the_asked_epochs_is_refused(tmp_path):
    run(tmp_path / "m.keras", epochs=3, display=StopAt(1, 1))
    with pytest.raises(ConfigError, match="already trained 1 epoch:"):
        run(tmp_path / "m.keras", epochs=1, resume=True)
    assert run(tmp_path / "m.keras", epochs=2, resume=True).status == "finished"


def test_train_interrupted_at_the_end_of_its_last_epoch_is_ended_by_a_resume(tmp_path):
    whole = run(tmp_path / "whole.keras", validation=held_out())
    last = len(whole.history) - 1
    cut = run(
        tmp_path / "cut.keras", validation=held_out(), display=StopAt(last, whole.history[last]["steps"])
    )
    assert (cut.status, len(cut.history)) == ("interrupted", len(whole.history))
    with pytest.raises(ConfigError, match=f"already trained {last + 1} epochs:"):
        run(tmp_path / "cut.keras", validation=held_out(), resume=True, epochs=last)
    again = run(tmp_path / "cut.keras", validation=held_out(), resume=True)
    assert (again.status, again.best_epoch) == ("finished", whole.best_epoch)
    assert losses(tmp_path / "cut.keras") == losses(tmp_path / "whole.keras")
    for a, b in zip(again.model.get_weights(), whole.model.get_weights(), strict=True):
        np.testing.assert_array_equal(a, b)
    for name in ("whole", "cut"):
        run(tmp_path / f"{name}.keras", validation=held_out(), resume=True, epochs=last + 2)
    assert losses(tmp_path / "cut.keras") == losses(tmp_path / "whole.keras")


def test_train_resumed_with_other_settings_names_them(tmp_path):
    run(tmp_path / "m.keras", epochs=1)
    with pytest.raises(CheckpointError, match=r"learning_rate was 0\.01, now 0\.02"):
        run(tmp_path / "m.keras", epochs=2, learning_rate=0.02, resume=True)
    with pytest.raises(CheckpointError, match="the training data differ"):
        source = TextBatches(IDS[:990], length=10, batch_size=8, seed=1)
        run(tmp_path / "m.keras", epochs=2, source=source, resume=True)
    with pytest.raises(CheckpointError, match="the model has other layers"):
        model = build_text_model(7, embedding=4, units=5, seed=5)
        run(tmp_path / "m.keras", epochs=2, model=model, resume=True)


def test_train_over_an_unfinished_run_is_refused(tmp_path):
    run(tmp_path / "m.keras", display=StopAt(0, 3))
    with pytest.raises(ConfigError, match=r"has not ended.*resume=True.*overwrite=True"):
        run(tmp_path / "m.keras")
    assert run(tmp_path / "m.keras", overwrite=True).status == "finished"


def test_train_over_a_finished_model_is_refused_without_overwrite(tmp_path):
    run(tmp_path / "m.keras", epochs=1)
    before = (tmp_path / "m.keras").read_bytes()
    with pytest.raises(ConfigError, match=r"m\.keras exists. Replace it \(overwrite=True\), .*resume=True"):
        run(tmp_path / "m.keras", epochs=1)
    assert (tmp_path / "m.keras").read_bytes() == before
    assert run(tmp_path / "m.keras", epochs=1, overwrite=True, learning_rate=0.1).status == "finished"
    assert (tmp_path / "m.keras").read_bytes() != before
    run(tmp_path / "m.keras", epochs=2, resume=True, learning_rate=0.1)


def test_train_resumed_without_a_checkpoint_says_so(tmp_path):
    with pytest.raises(CheckpointError, match="no checkpoint"):
        run(tmp_path / "m.keras", resume=True)


def test_train_with_only_damaged_checkpoints_starts_over_and_cannot_resume(tmp_path):
    result = run(tmp_path / "m.keras", display=StopAt(1, 3))
    for path in result.folder.glob("checkpoint-*"):
        path.write_bytes(path.read_bytes()[:-1])
    with pytest.raises(CheckpointError, match="No older one is whole"):
        run(tmp_path / "m.keras", resume=True)
    assert run(tmp_path / "m.keras", overwrite=True).status == "finished"
    assert CheckpointFolder(result.folder).newest().progress["finished"]


def test_train_resumed_from_the_checkpoint_before_a_damaged_one_has_the_same_curve(tmp_path):
    whole = tmp_path / "whole.keras"
    run(whole, epochs=4)
    cut = run(tmp_path / "m.keras", epochs=4, display=StopAt(2, 3))
    newest = max(cut.folder.glob("checkpoint-*"))
    newest.write_bytes(newest.read_bytes().replace(b"epoch", b"Epoch", 1))
    heard = Heard()
    run(tmp_path / "m.keras", epochs=4, resume=True, display=heard)
    assert newest.name in heard.messages[0] and "before it" in heard.messages[0]
    assert curve(tmp_path / "m.keras") == curve(whole)
    assert losses(tmp_path / "m.keras") == losses(whole)


def test_second_process_in_the_same_run_is_refused(tmp_path):
    with exclusive(run_folder(tmp_path / "m.keras")), pytest.raises(OutputError, match="another process"):
        run(tmp_path / "m.keras")
    assert not (tmp_path / "m.keras").exists()


def test_train_stopped_by_sigterm_saves_as_ctrl_c_does(tmp_path):
    stop = StopAt(0, 5, signal.SIGTERM)
    assert run(tmp_path / "m.keras", display=stop).status == "interrupted"
    assert stop.said
    assert signal.getsignal(signal.SIGTERM) is signal.SIG_DFL


def test_train_interrupted_in_its_first_epoch_has_no_best_epoch(tmp_path):
    result = run(tmp_path / "m.keras", display=StopAt(0, 2))
    assert (result.status, result.best_epoch, result.best) == ("interrupted", 0, None)


def test_train_into_a_file_of_another_suffix_is_refused(tmp_path):
    with pytest.raises(ConfigError, match=r"\.keras"):
        run(tmp_path / "m.h5")


def test_train_into_an_unwritable_folder_is_refused_before_training(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(OutputError):
        run(tmp_path / "file" / "m.keras")


def test_train_with_precision_auto_resumes_in_the_chosen_precision(tmp_path):
    cut = run(tmp_path / "m.keras", precision="auto", display=StopAt(0, 3))
    again = run(tmp_path / "m.keras", precision="auto", resume=True)
    assert again.precision == cut.precision


def test_run_finished_by_another_process_is_not_overwritten(tmp_path):
    output = tmp_path / "m.keras"
    check_start(RunOptions(output=output))
    run(output, epochs=1)
    with pytest.raises(ConfigError, match="exists"):
        run(output, epochs=1)


def test_second_process_is_refused_before_it_reads_anything(tmp_path):
    folder = run_folder(tmp_path / "m.keras")
    with exclusive(folder), pytest.raises(OutputError, match="another process"):
        check_start(RunOptions(output=tmp_path / "m.keras"))


def test_failed_run_without_results_leaves_no_folder(tmp_path):
    with pytest.raises(CheckpointError, match="no checkpoint"):
        run(tmp_path / "m.keras", resume=True)
    both = "resume=True goes on with a run, and overwrite=True replaces it: choose one of the two"
    with pytest.raises(ConfigError, match=both):
        run(tmp_path / "m.keras", resume=True, overwrite=True)
    assert list(tmp_path.iterdir()) == []
