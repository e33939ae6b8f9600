"""The suggested training command: it runs unchanged and builds such a model."""

import dataclasses
import json
import shlex

import keras
import numpy as np
import pytest

from cellerate import train_series
from cellerate.data.settings import TableOptions
from cellerate.models.autoencoder import build_autoencoder
from cellerate.models.forecast import build_forecast_model
from cellerate.models.storage import TaskRecord, load_model, save_model
from cellerate.models.text import build_text_model
from cellerate.optimization.context import Context
from cellerate.optimization.listener import StageListener
from cellerate.optimization.processes import Workers
from cellerate.optimization.settings import OptimizeSettings
from cellerate.optimization.state import Choices, State
from cellerate.optimization.train_command import architecture_of, train_command
from cellerate.optimization.workloads.opening import open_workload
from cellerate.report.record import TrainingStep
from cellerate.tasks.settings import (
    AutoencoderArchitecture,
    ForecastArchitecture,
    ReadingOptions,
    TextArchitecture,
)
from cellerate.training import checkpoint
from support.optimization.small_models import filled
from support.runs.program import share_process

pytestmark = pytest.mark.keras

DATA = {"text": "t.txt", "series": "s.csv", "embed": "l.txt"}
DEFAULTS = OptimizeSettings()


@pytest.fixture
def work_of(made, tmp_path):
    def work_of(task, model=None, **payload):
        known, record = load_model(made / f"{task}.keras")
        model = known if model is None else filled(model)
        save_model(model, tmp_path / "m.keras", TaskRecord(task, record.payload | payload))
        return open_workload(tmp_path / "m.keras", [made / DATA[task]], seed=0)

    return work_of


@pytest.fixture
def command_of(made, tmp_path):
    def command_of(work, settings=DEFAULTS, **choices):
        task = work.record.task
        usual = Choices("auto", "float32", 8, 1, work.length, "int8")
        state = State(identity={}, choices=dataclasses.replace(usual, **choices), started="")
        state.training_steps.append(TrainingStep("Keras, float32", 8, work.length, 1.0, 1.0, 1.0, 1.0))
        return train_command(
            Context(
                work,
                settings,
                tmp_path / "out",
                tmp_path / "m.keras",
                [str(made / DATA[task])],
                keras.config.backend(),
                state,
                StageListener(),
                Workers(lambda: None),
            )
        )

    return command_of


def vocabulary(work):
    return work.model.outputs[0].shape[-1]


@pytest.mark.parametrize(
    "changed",
    [
        {},
        {"layers": 2, "dropout": 0.3, "layer_norm": True},
        {"layers": 2, "cell": "simple_rnn"},
        {"recurrent_dropout": 0.2, "tie_weights": True, "embedding": 16},
    ],
)
def test_options_of_a_text_model_are_found_from_it(work_of, changed):
    told = TextArchitecture(**({"embedding": 6, "units": 16} | changed))
    built = build_text_model(vocabulary(work_of("text")), **dataclasses.asdict(told), seed=3)
    assert architecture_of(work_of("text", built)) == told


@pytest.mark.parametrize(
    "changed",
    [
        {},
        {"layers": 2, "bidirectional": True, "dropout": 0.0},
        {"layers": 2, "bidirectional": True, "cell": "gru"},
        {"residual": False},
        {"quantile": (0.1, 0.5, 0.9)},
    ],
)
def test_options_of_a_forecaster_are_found_from_it(work_of, changed):
    told = ForecastArchitecture(**({"units": 8} | changed))
    arguments = dataclasses.asdict(told)
    levels = arguments.pop("quantile")
    options = work_of("series").record.payload["options"]
    built = build_forecast_model(
        options["window"],
        len(options["feature"]),
        options["horizon"],
        1,
        target_columns=[options["feature"].index("load")],
        quantiles=levels or None,
        **arguments,
    )
    assert architecture_of(work_of("series", built, quantiles=list(levels))) == told


def test_options_of_a_forecaster_with_further_inputs_are_found_from_it(tmp_path):
    days = np.datetime64("2024-01-01") + np.arange(80)
    rows = [f"{day},{shop},{i % 7 + i},{i % 2}" for shop in "ab" for i, day in enumerate(days)]
    (tmp_path / "s.csv").write_text("\n".join(["date,shop,y,promo", *rows]))
    told = ForecastArchitecture(units=4, quantile=(0.1, 0.5, 0.9), series_embedding=2)
    train_series(
        tmp_path / "s.csv",
        tmp_path / "m.keras",
        **dataclasses.asdict(told),
        target="y",
        series_column="shop",
        future="promo",
        calendar=["weekday"],
        window=6,
        horizon=2,
        epochs=1,
    )
    assert architecture_of(open_workload(tmp_path / "m.keras", [tmp_path / "s.csv"], seed=0)) == told


@pytest.mark.parametrize("changed", [{}, {"dropout": 0.1}, {"decoder_dropout": 0.2}])
def test_options_of_a_line_model_are_found_from_it(work_of, changed):
    told = AutoencoderArchitecture(**({"embedding": 4, "units": 8, "latent": 5} | changed))
    built = build_autoencoder(vocabulary(work_of("embed")), **dataclasses.asdict(told))
    assert architecture_of(work_of("embed", built)) == told


def test_model_that_options_cannot_build_is_named_by_its_file(work_of, command_of, tmp_path):
    size = vocabulary(work_of("text"))
    for built in (
        build_text_model(size, embedding=6, units=[16, 8]),
        keras.Sequential(
            [
                keras.Input((None,), dtype="int32"),
                keras.layers.Embedding(size, 6),
                keras.layers.GRU(8, return_sequences=True),
                keras.layers.Dense(size),
            ]
        ),
    ):
        work = work_of("text", built)
        assert architecture_of(work) is None
        assert f"--model {shlex.quote(str(tmp_path / 'm.keras'))} --length 10" in command_of(work)


def test_command_for_a_model_of_its_own_has_its_quantiles(work_of, command_of):
    options = work_of("series").record.payload["options"]
    inputs = keras.Input((options["window"], len(options["feature"])))
    outputs = keras.layers.Dense(options["horizon"] * 2)(keras.layers.LSTM(3)(inputs))
    model = keras.Model(inputs, keras.layers.Reshape((options["horizon"], 1, 2))(outputs))
    told = command_of(work_of("series", model, quantiles=[0.1, 0.9]))
    assert "m.keras --quantile 0.1 --quantile 0.9 " in told


def test_command_has_the_chosen_and_the_original_settings(work_of, command_of):
    training = {
        "optimizer": "adamw",
        "learning_rate": 0.01,
        "clipnorm": 1.0,
        "epochs": 3,
        "jit_compile": False,
        "accumulate": 2,
        "batch_size": "unknown",
    }
    work = work_of("text", training=training, include=["*.txt", "*.md"], validation_fraction=0.25)
    told = command_of(work, batch_size=4, accumulate=2, training_precision="mixed_bfloat16", length=20)
    for words in (
        "--embedding 6 --units 16 --layers 1",
        "--include '*.txt' --include '*.md'",
        "--length 20 --batch-size 4",
        "--validation-fraction 0.25",
        "--epochs 3 --optimizer adamw --learning-rate 0.0141",
        "--clipnorm 1 --accumulate 4 --precision mixed_bfloat16 --jit-compile off",
    ):
        assert words in told
    assert "--implementation" not in told
    assert "--implementation keras" in command_of(work, implementation="keras")


def test_command_reads_tables_as_the_run_did(work_of, command_of):
    settings = OptimizeSettings(
        reading=ReadingOptions(missing="drop", frequency="hour"), table=TableOptions(separator=";")
    )
    told = command_of(work_of("series"), settings)
    for words in ("--missing drop", "--frequency hour", "--separator ';'"):
        assert words in told


@pytest.mark.parametrize("task", DATA)
def test_command_runs_unchanged_and_trains_such_a_model(
    work_of, command_of, task, tmp_path, monkeypatch, capsys
):
    from cellerate.cli import main

    share_process(monkeypatch)
    work = work_of(task, training={"epochs": 1})
    words = shlex.split(command_of(work))
    (tmp_path / "out").mkdir()
    monkeypatch.setattr("sys.argv", [*words, "--json", "--quiet"])
    with pytest.raises(SystemExit) as ended:
        main.main()
    shown = capsys.readouterr()
    assert not ended.value.code, shown.err
    assert json.loads(shown.out)["training"]["status"] == "finished"
    model, _ = load_model(tmp_path / "out" / "retrained.keras")
    assert checkpoint.architecture_of(model) == checkpoint.architecture_of(work.model)
