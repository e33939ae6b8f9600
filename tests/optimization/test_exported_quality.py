"""The quality of exported models at their task, measured in their own runtimes."""

import re

import pytest

import cellerate
from cellerate.errors import ConfigError, ModelError
from cellerate.optimization.exported_quality import quality_judge

pytestmark = [
    pytest.mark.keras,
    # Keras's own convert_to_numpy calls np.array on a framework's tensor, which NumPy 2 warns about.
    pytest.mark.filterwarnings("ignore:__array__ implementation doesn't accept a copy keyword"),
]
DATA = {"text": "t.txt", "series": "s.csv", "embed": "l.txt"}
METRICS = {"text": "bits per character", "series": "mean absolute error", "embed": "token accuracy"}


def judge_of(made, task, **options):
    return quality_judge(made / f"{task}.keras", [made / DATA[task]], **options)


@pytest.mark.backends
@pytest.mark.parametrize("task", DATA)
def test_exact_export_has_the_quality_of_the_original(made, tmp_path, task):
    done = cellerate.export(made / f"{task}.keras", tmp_path / "m.onnx", judge=judge_of(made, task))
    found = done.quality
    assert found.metric == METRICS[task]
    assert found.before > 0
    assert found.after == pytest.approx(found.before, rel=1e-4)
    assert abs(found.loss) < 1e-4


@pytest.mark.parametrize("batch_size", [1, 3])
@pytest.mark.parametrize("precision", ["float16", "int8"])
@pytest.mark.parametrize("task", ["text", "series"])
def test_narrow_litert_export_is_evaluated_for_any_row_count(made, tmp_path, task, precision, batch_size):
    done = cellerate.export(
        made / f"{task}.keras",
        tmp_path / "m.tflite",
        to="litert",
        precision=precision,
        batch_size=batch_size,
        judge=judge_of(made, task, max_loss=0.2),
    )
    assert done.quality.after == pytest.approx(done.quality.before, rel=0.2)
    assert done.quality.after != done.quality.before


def test_export_that_loses_too_much_quality_is_removed(made, tmp_path, monkeypatch):
    (tmp_path / "m.onnx").write_bytes(b"older")
    judge = judge_of(made, "text", max_loss=0.02)

    def worse(exported):
        predict = exported.predict
        monkeypatch.setattr(exported, "predict", lambda *asked: -predict(*asked))
        return judge(exported)

    with pytest.raises(
        ModelError, match=r"bits per character of the model goes from .* most 2\.00% is allowed"
    ) as told:
        cellerate.export(made / "text.keras", tmp_path / "m.onnx", judge=worse)
    assert re.search(r"[\d.]+% worse", str(told.value))
    assert [(path.name, path.read_bytes()) for path in tmp_path.iterdir()] == [("m.onnx", b"older")]


def test_export_that_cannot_be_evaluated_is_refused_before_writing(made, tmp_path):
    with pytest.raises(ConfigError, match=r"give the \.keras file that it was made from"):
        quality_judge(tmp_path / "m.cell", [made / "t.txt"])
    with pytest.raises(ConfigError, match="max_loss is -1"):
        judge_of(made, "text", max_loss=-1)
    with pytest.raises(ConfigError, match="there are no data"):
        quality_judge(made / "text.keras", [])
