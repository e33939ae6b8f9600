"""Packed models in MLflow's hands."""

import numpy as np
import pandas as pd
import pytest

import cellerate
from cellerate.adapters import mlflow as flavour
from cellerate.errors import CellerateError
from cellerate.program import Node, Program
from cellerate.runtime.cell import write_cell

mlflow = pytest.importorskip("mlflow")
pytestmark = [pytest.mark.keras, pytest.mark.filterwarnings("ignore")]
TEXT = "the quick brown fox jumps over the lazy dog\n" * 60


@pytest.fixture(scope="module")
def models(tmp_path_factory):
    """A packed model of each task, and one of none."""
    folder = tmp_path_factory.mktemp("models")
    (folder / "book.txt").write_text(TEXT)
    cellerate.train_text(folder / "book.txt", folder / "text.keras", units=8, epochs=1)
    cellerate.train_embed(folder / "book.txt", folder / "embed.keras", units=4, latent=3, epochs=1)
    times = pd.date_range("2024", periods=200, freq="h")
    frame = pd.DataFrame({"time": times, "load": np.sin(np.arange(200) / 4)})
    frame.to_csv(folder / "load.csv", index=False)
    cellerate.train_series(
        folder / "load.csv", folder / "series.keras", target="load", window=6, horizon=2, units=4, epochs=1
    )
    for task in ("text", "embed", "series"):
        cellerate.pack(folder / f"{task}.keras", folder / f"{task}.cell")
    nodes = (
        Node("input", "x", options={"shape": (-1, 3), "dtype": "float32"}),
        Node("activation", "y", {"x": 0}, options={"activation": "tanh"}),
    )
    write_cell(folder / "none.cell", Program(nodes, {"y": 1}))
    return folder


INPUTS = {
    "text": (
        ["the ", "lazy "],
        {"max_tokens": 5, "seed": 3},
        lambda model, x: model.generate(x, max_tokens=5, seed=3),
    ),
    "embed": (pd.DataFrame({"line": ["a dog", "a fox"]}), {}, lambda model, x: model.embed(list(x["line"]))),
    "series": (pd.DataFrame({"load": np.arange(6.0)}), {}, lambda model, x: model.forecast(x)),
    "none": (np.ones((2, 3), np.float32), {}, lambda model, x: model.predict(x)),
}


@pytest.mark.parametrize("task", INPUTS)
def test_a_saved_model_gives_what_the_file_gives(models, tmp_path, task):
    data, params, direct = INPUTS[task]
    signature = mlflow.models.infer_signature(["a"], params=params) if params else None
    flavour.save_model(models / f"{task}.cell", tmp_path / "saved", signature=signature)
    wanted = direct(cellerate.load(models / f"{task}.cell"), data)
    loaded = mlflow.pyfunc.load_model(str(tmp_path / "saved"))
    np.testing.assert_array_equal(loaded.predict(data, params=params or None), wanted)
    np.testing.assert_array_equal(direct(flavour.load_model(str(tmp_path / "saved")), data), wanted)
    with pytest.raises(CellerateError, match="exists"):
        flavour.save_model(models / f"{task}.cell", tmp_path / "saved")


def test_a_logged_model_is_registered_and_loads_by_its_name(models, tmp_path, monkeypatch):
    monkeypatch.setenv("MLFLOW_TRACKING_URI", f"sqlite:///{tmp_path / 'mlflow.db'}")
    monkeypatch.chdir(tmp_path)
    mlflow.set_tracking_uri(f"sqlite:///{tmp_path / 'mlflow.db'}")
    with mlflow.start_run():
        flavour.log_model(models / "none.cell", "tanh", registered_model_name="tanh")
    x = np.full((1, 3), 0.5, np.float32)
    served = mlflow.pyfunc.load_model("models:/tanh/1").predict(x)
    np.testing.assert_allclose(served, np.tanh(x), rtol=1e-6)
    assert mlflow.models.Model.load("models:/tanh/1").flavors["cellerate"]["task"] is None
