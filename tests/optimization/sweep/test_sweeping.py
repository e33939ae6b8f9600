import json

import pytest

import cellerate
from cellerate.errors import ConfigError, DataError, ModelError, OutputError
from cellerate.files import exclusive
from cellerate.machine import gpu
from cellerate.optimization.sweep.command import train_command_of
from cellerate.optimization.sweep.record import read_record
from support.optimization.sweeps import made_up

OPTIONS = {"batch_size": [8, 16], "seconds": 1.0, "rounds": 2, "beside_stock": False, "backend": "torch"}
pytestmark = pytest.mark.keras


def interrupted(folder, monkeypatch):
    def fails(rows, kind):
        if [kind for _, kind in asked].count("turn") == 3:
            raise KeyboardInterrupt

    asked = made_up(monkeypatch, fails)
    with pytest.raises(KeyboardInterrupt):
        cellerate.sweep("series", "data.csv", folder, **OPTIONS)


def test_sweep_writes_its_record_page_and_verdict(tmp_path, monkeypatch):
    made_up(monkeypatch)
    found = cellerate.sweep("series", "data.csv", tmp_path / "s", **OPTIONS)
    assert found.status == "finished"
    written = json.loads((tmp_path / "s" / "sweep.json").read_text())
    assert written["verdict"]["sentence"] == found.verdict["sentence"]
    assert written["machine"]["cores"]
    assert written["versions"]["cellerate"] == cellerate.__version__
    assert (tmp_path / "s" / "sweep.html").is_file()
    assert read_record(tmp_path / "s") == found


def test_folder_with_a_sweep_or_other_files_is_not_overwritten(tmp_path, monkeypatch):
    made_up(monkeypatch)
    cellerate.sweep("series", "data.csv", tmp_path / "s", **OPTIONS)
    before = (tmp_path / "s" / "sweep.json").read_bytes()
    with pytest.raises(ConfigError, match="holds a sweep already"):
        cellerate.sweep("series", "data.csv", tmp_path / "s", **OPTIONS)
    with pytest.raises(ConfigError, match="has been finished"):
        cellerate.sweep("series", "data.csv", tmp_path / "s", resume=True, **OPTIONS)
    assert (tmp_path / "s" / "sweep.json").read_bytes() == before
    cellerate.sweep("series", "data.csv", tmp_path / "s", overwrite=True, **OPTIONS)
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "mine.txt").touch()
    with pytest.raises(ConfigError, match="holds other files"):
        cellerate.sweep("series", "data.csv", tmp_path / "other", **OPTIONS)
    with pytest.raises(ConfigError, match="is a file"):
        cellerate.sweep("series", "data.csv", tmp_path / "other" / "mine.txt", **OPTIONS)
    with pytest.raises(ConfigError, match="does not hold a sweep to continue"):
        cellerate.sweep("series", "data.csv", tmp_path / "new", resume=True, **OPTIONS)


def test_two_sweeps_into_one_folder_are_refused(tmp_path, monkeypatch):
    made_up(monkeypatch)
    with exclusive(tmp_path / "s"), pytest.raises(OutputError, match="another process"):
        cellerate.sweep("series", "data.csv", tmp_path / "s", **OPTIONS)


def test_interrupted_sweep_resumes_with_the_same_settings_only(tmp_path, monkeypatch):
    interrupted(tmp_path / "s", monkeypatch)
    assert read_record(tmp_path / "s").status == "interrupted"
    assert "The sweep is not complete" in (tmp_path / "s" / "sweep.html").read_text()
    asked = made_up(monkeypatch)
    for changed, named in (
        ({"batch_size": [8, 32]}, "batch_size is"),
        ({"seconds": 2.0}, "seconds is 1.0 there, seconds is 2.0 now"),
        ({"units": 8}, "units is None there, units is 8 now"),
    ):
        with pytest.raises(ConfigError, match=named):
            cellerate.sweep("series", "data.csv", tmp_path / "s", resume=True, **{**OPTIONS, **changed})
    with pytest.raises(ConfigError, match="data is"):
        cellerate.sweep("series", "other.csv", tmp_path / "s", resume=True, **OPTIONS)
    assert asked == []
    found = cellerate.sweep("series", "data.csv", tmp_path / "s", resume=True, time_budget=500.0, **OPTIONS)
    assert found.status == "finished"
    assert all(len(point.turns) == 2 for point in found.points)


def test_sweep_without_measurements_leaves_no_files(tmp_path, monkeypatch):
    def fails(rows, kind):
        raise KeyboardInterrupt

    made_up(monkeypatch, fails)
    with pytest.raises(KeyboardInterrupt):
        cellerate.sweep("series", "data.csv", tmp_path / "s", **OPTIONS)
    assert not (tmp_path / "s").exists()


def test_damaged_record_is_refused(tmp_path, monkeypatch):
    interrupted(tmp_path / "s", monkeypatch)
    path = tmp_path / "s" / "sweep.json"
    path.write_text(path.read_text()[:-40])
    with pytest.raises(DataError, match="is damaged"):
        cellerate.sweep("series", "data.csv", tmp_path / "s", resume=True, **OPTIONS)


def test_argument_that_is_neither_task_nor_model_is_refused(tmp_path):
    with pytest.raises(ConfigError, match="neither a task nor the file of a model"):
        cellerate.sweep("nonsense", "data.csv", tmp_path / "s", **OPTIONS)


def test_trained_model_supplies_its_settings_and_refuses_other_sizes(made, tmp_path, monkeypatch):
    made_up(monkeypatch)
    model = made / "text.keras"
    found = cellerate.sweep(model, made / "t.txt", tmp_path / "s", **OPTIONS)
    assert found.task == "text"
    assert found.model == str(model)
    assert found.parts["training"]["learning_rate"] == 0.01
    assert found.parts["data"]["length"] == 10
    # The control has the batches of the model's training, which are one of those that were asked for.
    assert [point.values["batch_size"] for point in found.points] == [8, 16]
    command = found.verdict["command"]
    assert f"--model {model}" in command
    assert "--units" not in command
    with pytest.raises(ConfigError, match="units needs another architecture"):
        cellerate.sweep(model, made / "t.txt", tmp_path / "new", units=[8, 16], **OPTIONS)


@pytest.mark.parametrize("task", ["series", "embed"])
def test_trained_models_of_other_tasks_supply_their_settings(made, tmp_path, monkeypatch, task):
    made_up(monkeypatch)
    data = {"series": "s.csv", "embed": "l.txt"}[task]
    found = cellerate.sweep(made / f"{task}.keras", made / data, tmp_path / "s", **OPTIONS)
    wanted = {"series": ("window", 6), "embed": ("max_length", 12)}[task]
    assert found.parts["data"][wanted[0]] == wanted[1]


def test_model_without_a_record_is_refused(tmp_path):
    import keras

    keras.Sequential([keras.Input((3, 2)), keras.layers.LSTM(2)]).save(tmp_path / "plain.keras")
    with pytest.raises(ModelError, match="does not say what it is for"):
        cellerate.sweep(tmp_path / "plain.keras", "data.csv", tmp_path / "s", **OPTIONS)


def test_command_trains_the_chosen_point(tmp_path, monkeypatch):
    made_up(monkeypatch)
    monkeypatch.chdir(tmp_path)
    options = OPTIONS | {"learning_rate": [1e-3, 1e-2], "target": "OT", "clipnorm": 1.0}
    found = cellerate.sweep("series", "data.csv", "s", **options)
    chosen = next(point for point in found.points if point.label == found.verdict["chosen"])
    command = found.verdict["command"]
    assert command.startswith("cellerate train series data.csv --target OT")
    assert f"--batch-size {chosen.values['batch_size']} " in command
    assert f"--learning-rate {chosen.values['learning_rate']} " in command
    assert "--clipnorm 1" in command
    assert command.endswith("--backend torch -o trained.keras")


def test_command_for_the_cpu_hides_the_gpu_that_is_there(tmp_path, monkeypatch):
    made_up(monkeypatch)
    monkeypatch.setattr(gpu, "facts", lambda: None)
    monkeypatch.setattr(gpu, "diagnose", lambda backend, facts: None)
    options = {name: value for name, value in OPTIONS.items() if name != "batch_size"}
    found = cellerate.sweep("series", "data.csv", tmp_path / "s", device="cpu,gpu", **options)
    found.verdict["chosen"] = "cpu"
    assert train_command_of(found).startswith(
        "CUDA_VISIBLE_DEVICES= JAX_PLATFORMS=cpu cellerate train series"
    )
    found.verdict["chosen"] = None
    assert train_command_of(found) == ""


@pytest.mark.parametrize(
    ("subject", "data", "options", "reason"),
    [
        ("series", [[1, 2]], {}, "must be the paths of files"),
        ("embed", ["a.txt", "b.txt"], {}, "one file of lines"),
        ("text", "a.txt", {"carry_states": True}, "cannot be swept"),
        ("series", "a.csv", {"layer_norm": "both"}, "'layer_norm' is not a setting of training on series"),
    ],
)
def test_data_that_points_cannot_train_on_are_refused(tmp_path, monkeypatch, subject, data, options, reason):
    asked = made_up(monkeypatch)
    with pytest.raises(ConfigError, match=reason):
        cellerate.sweep(subject, data, tmp_path / "s", **OPTIONS, **options)
    assert asked == []
    assert not (tmp_path / "s").exists()


def test_automatic_precision_of_a_trained_model_is_not_set_again(made, tmp_path, monkeypatch):
    from cellerate.models.storage import load_model, save_model

    model, record = load_model(made / "text.keras")
    record.payload["training"] = {"precision": "auto", "learning_rate": 0.02}
    save_model(model, tmp_path / "auto.keras", record)
    made_up(monkeypatch)
    found = cellerate.sweep(tmp_path / "auto.keras", made / "t.txt", tmp_path / "s", **OPTIONS)
    assert "precision" not in found.parts["training"]
    assert found.parts["training"] == {"learning_rate": 0.02}
