"""Wrong options and missing files are refused before a framework starts, which takes seconds."""

import zipfile

import pytest

from cellerate.cli import backend, running
from cellerate.cli.shipping import export
from support.error_lines import one_error
from support.runs.program import program_here

MISSING = "there is no model file n.keras"


@pytest.fixture
def cellerate(monkeypatch, capsys, tmp_path):
    """Runs the program in a folder with texts and files that are called models; no framework may start in it."""

    def started(name, *_):
        pytest.fail(f"{name} started")

    monkeypatch.chdir(tmp_path)
    (tmp_path / "t.txt").write_text("text " * 40)
    for name in ("empty.txt", "empty.csv", "empty.keras"):
        (tmp_path / name).touch()
    with zipfile.ZipFile(tmp_path / "old.keras", "w") as archive:
        archive.writestr("config.json", "{}")
    whole = (tmp_path / "old.keras").read_bytes()
    for name, content in (
        ("cut.keras", whole[:-9]),
        ("text.keras", b"text"),
        ("old.h5", whole),
        ("old.bin", whole),
    ):
        (tmp_path / name).write_bytes(content)
    for module in (backend, running, export):
        monkeypatch.setattr(module, "start_backend", started)
    return program_here(monkeypatch, capsys)


@pytest.mark.parametrize(
    ("words", "code", "message"),
    [
        ("train text t.txt -o t2", 2, "name it *.keras"),
        ("train series t.txt --target a -o t2", 2, "name it *.keras"),
        ("train embed t.txt -o t2", 2, "name it *.keras"),
        ("train text t.txt -o old.keras", 2, "old.keras exists. Replace it (--overwrite)"),
        ("train text t.txt -o m.keras --resume", 4, "no checkpoint to resume"),
        ("train text t.txt -o m.keras --resume --overwrite", 2, "choose one of the two"),
        ("train text t.txt -o m.keras --units -5", 2, "--units must be a whole number at least 1, not -5"),
        ("train text t.txt -o m.keras --embedding 0", 2, "--embedding must be"),
        ("train text t.txt -o m.keras --dropout nan", 2, "--dropout must be a number at least 0 and below 1"),
        ("train series t.txt -o m.keras --target a --layers 0", 2, "--layers must be"),
        ("train series t.txt -o m.keras --target a --dropout 1", 2, "--dropout must be"),
        ("train embed t.txt -o m.keras --latent -1", 2, "--latent must be"),
        ("train embed t.txt -o m.keras --decoder-dropout 2", 2, "--decoder-dropout must be"),
        ("export old.keras --to onxx", 2, "--to must be one of onnx"),
        ("export old.keras -o m.bin", 2, "ending in '.onnx'"),
        ("export old.keras --precision int5", 2, "--precision must be"),
        ("export old.keras --batch-size -3", 2, "--batch-size must be a whole number at least 1, not -3"),
        ("export old.keras --max-quality-loss nan --data t.txt", 2, "--max-quality-loss must be a number"),
        ("export n.keras", 4, MISSING),
        ("pack old.keras -o m.bin", 2, "ending in '.cell'"),
        ("pack old.keras -o m.cell --precision int5", 2, "--precision must be"),
        ("pack n.keras -o m.cell", 4, MISSING),
        ("optimize n.keras --data t.txt", 4, MISSING),
        ("optimize old.keras --data n.txt", 3, "n.txt not found"),
        ("evaluate n.keras t.txt", 4, MISSING),
        ("evaluate old.keras n.txt", 3, "n.txt not found"),
        ("backtest old.keras n.csv", 3, "n.csv not found"),
        ("detect old.keras n.csv", 3, "n.csv not found"),
        ("generate n.keras the", 4, MISSING),
        ("explain n.keras", 4, MISSING),
        ("info n.keras", 4, "n.keras"),
        ("profile old.keras --data n.txt", 3, "n.txt not found"),
        ("train text empty.txt -o m.keras", 3, "empty.txt is empty: expected a file with data"),
        ("train series empty.csv --target a -o m.keras", 3, "empty.csv is empty"),
        ("train text empty.txt empty.csv -o m.keras", 3, "empty.txt and the other files are empty"),
        (
            "train series t.txt --target a --quantile 1.5 -o m.keras",
            2,
            "--quantile must be ascending numbers",
        ),
        (
            "train series t.txt --target a --quantile nan -o m.keras",
            2,
            "--quantile must be ascending numbers",
        ),
        ("forecast old.keras n.csv", 3, "n.csv not found"),
        ("forecast old.keras t.txt --future n.csv", 3, "n.csv not found"),
        ("forecast old.keras n.csv -o out", 3, "n.csv not found"),
        ("forecast old.keras t.txt -o out.xlsx", 2, "the output ends in .csv or .parquet"),
        ("embed old.keras n.txt", 3, "n.txt not found"),
        ("embed old.keras n/ -o out", 3, "n not found"),
        ("embed old.keras t.txt -o out.txt", 2, "out.txt"),
        ("evaluate empty.keras t.txt", 4, "empty.keras is damaged or not a model file: it is empty"),
        ("generate cut.keras the", 4, "cut.keras is damaged or not a model file: its end is missing"),
        ("explain text.keras", 4, "text.keras is not a .keras file: it is not a zip archive"),
        ("explain old.h5", 4, "old.h5 is not an HDF5 file"),
        ("explain old.bin", 4, "old.bin does not end in '.keras'"),
        ("pack old.cell -o m.cell", 4, "there is no model file old.cell"),
    ],
    ids=lambda value: value.replace(" ", "-") if isinstance(value, str) else None,
)
def test_wrong_option_or_file_is_refused_before_a_framework_starts(cellerate, tmp_path, words, code, message):
    before = sorted(tmp_path.rglob("*"))
    found, out, err = cellerate(*words.split())
    assert (found, out) == (code, "")
    assert message in one_error(err)
    assert sorted(tmp_path.rglob("*")) == before
