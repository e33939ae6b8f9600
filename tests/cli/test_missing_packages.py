"""A command reports a missing package before it reads files: the files of these tests are unreadable."""

import importlib.util

import pytest

from cellerate.data.series.future_rows import open_known
from cellerate.data.series.series import open_series
from cellerate.data.settings import Reading
from cellerate.errors import BackendError

pytestmark = pytest.mark.keras


@pytest.fixture
def without(monkeypatch):
    """Make Cellerate find a package not installed."""

    def leave_out(package):
        find = importlib.util.find_spec
        monkeypatch.setattr(importlib.util, "find_spec", lambda name: None if name == package else find(name))

    return leave_out


@pytest.fixture
def unreadable(monkeypatch, tmp_path):
    """A folder with data files that exist but are unreadable."""
    monkeypatch.chdir(tmp_path)
    for name in ("no.txt", "no.csv"):
        (tmp_path / name).write_bytes(bytes(range(256)))
    return tmp_path


TRAIN = ("train", "text", "no.txt", "-o", "m.keras")
SERIES = ("train", "series", "no.csv", "-o", "m.keras", "--target", "y")


@pytest.mark.parametrize(
    ("package", "extra", "words"),
    [
        ("wandb", "wandb", (*TRAIN, "--track", "wandb")),
        ("mlflow", "mlflow", (*SERIES, "--track", "mlflow")),
        (
            "tensorboard",
            "tensorboard",
            ("train", "embed", "no.txt", "-o", "m.keras", "--track", "tensorboard"),
        ),
        ("safetensors", "train", TRAIN),
        ("psutil", "train", SERIES),
        ("holidays", "holidays", (*SERIES, "--calendar", "holiday", "--holidays", "DE")),
        ("pyarrow", "tables", ("forecast", "no.cell", "no.npy", "-o", "f.parquet")),
        ("pyarrow", "tables", ("forecast", "no.cell", "no.npy", "-o", "folder")),
        ("pyarrow", "tables", ("embed", "no.cell", "no.txt", "-o", "v.parquet")),
        ("pyarrow", "tables", ("backtest", "no.cell", "no.npy", "-o", "f.parquet")),
        ("pyarrow", "tables", ("detect", "no.cell", "no.npy", "-o", "f.parquet")),
        ("pyarrow", "tables", ("evaluate", "no.cell", "no.npy", "-o", "folder")),
        ("onnxruntime", "onnx", ("export", "no.keras", "--to", "onnx", "--data", "no.txt")),
        ("ai_edge_litert", "litert", ("export", "no.keras", "--to", "litert", "--data", "no.txt")),
        ("jinja2", "report", ("optimize", "no.keras", "--data", "no.txt")),
        ("psutil", "train", ("profile", "no.keras", "--data", "no.txt")),
        ("optuna", "sweep", ("sweep", "text", "no.txt", "--search")),
    ],
    ids=lambda value: "-".join(value[:2]) if isinstance(value, tuple) else value,
)
def test_missing_package_is_named_before_data_or_model_are_read(
    package, extra, words, without, cellerate, unreadable
):
    without(package)
    code, out, err = cellerate(*words)
    assert (code, out) == (5, "")
    assert f"needs the package '{package}', which is not installed" in err
    assert f"pip install 'cellerate[{extra}]'" in err
    assert sorted(path.name for path in unreadable.iterdir()) == ["no.csv", "no.txt"]


def test_unknown_country_of_holidays_is_refused_before_the_data_are_read(cellerate, unreadable):
    code, _, err = cellerate(*SERIES, "--calendar", "holiday", "--holidays", "XX")
    assert code == 2 and "holidays is 'XX'" in err


def test_second_table_that_needs_a_package_is_named_before_the_first_is_opened(without, tmp_path):
    without("openpyxl")
    (tmp_path / "a.csv").write_bytes(b"")
    (tmp_path / "b.xlsx").write_bytes(b"")
    with pytest.raises(BackendError, match=r"b\.xlsx needs .*pip install 'cellerate\[excel\]'"):
        open_series([tmp_path / "a.csv", tmp_path / "b.xlsx"], Reading(targets=["y"]))
    with pytest.raises(BackendError, match=r"b\.xlsx needs .*pip install 'cellerate\[excel\]'"):
        open_known([tmp_path / "a.csv"], Reading(targets=["y"]), ["price"], tmp_path / "b.xlsx")


def test_training_without_matplotlib_says_at_once_that_it_draws_no_chart(cellerate, monkeypatch, unreadable):
    from cellerate.machine import environment

    monkeypatch.setattr(environment, "package_version", lambda name: None)
    code, _, err = cellerate(*SERIES)
    assert code != 0
    assert err.index("no chart will be drawn: pip install 'cellerate[plots]'") < err.index("no.csv ")
