"""A format of exported models is one record: all that is said of it and done with it follows from that."""

import tomllib
from pathlib import Path

import keras
import pytest
from typer.testing import CliRunner

import cellerate
from cellerate.exports.formats import registry
from cellerate.exports.formats.base import ExportFormat
from cellerate.runtime.program import Engine

pytestmark = pytest.mark.keras


@pytest.mark.parametrize("name", registry.FORMATS)
def test_record_is_in_the_module_of_its_name_and_its_extra_installs_its_packages(name: str) -> None:
    form = registry.FORMATS[name]
    assert Path(registry.__file__).with_name(f"{name}.py").is_file()
    assert form.name == name
    assert form.precisions[0] == "float32"
    assert 0 < form.tolerance < 1e-3
    project = tomllib.loads((Path(__file__).parents[3] / "pyproject.toml").read_text())
    installed = " ".join(project["project"]["optional-dependencies"][form.extra]).replace("-", "_")
    assert all(package in installed for package in form.packages)


class _Kept:
    """A runtime that computes what was kept, with an error."""

    def __init__(self, program, path, error):
        assert path.read_text() == "float32"
        self._engine, self._error = Engine(program), error

    def run(self, inputs):
        return {name: values + self._error for name, values in self._engine.run(inputs).items()}


def test_format_that_is_added_to_the_table_is_offered_tried_and_written(tmp_path, monkeypatch) -> None:
    errors = [1e-3]
    kept = ExportFormat(
        name="kept",
        suffix=".kept",
        packages=(),
        extra="",
        precisions=("float32",),
        tolerance=1e-2,
        runtime="Kept",
        write=lambda source, precision, path: path.write_text(precision),
        open=lambda source, path, signature: _Kept(source.programs[signature], path, errors[0]),
    )
    monkeypatch.setitem(registry.FORMATS, "kept", kept)
    model = keras.Sequential([keras.Input((4, 3)), keras.layers.LSTM(2)])
    done = cellerate.export(model, tmp_path / "m.kept", to="kept")
    assert done.error == pytest.approx(1e-3, rel=1e-3)
    assert (done.format, done.tolerance) == ("kept", 1e-2)
    assert done.tried == "in Kept, batches of 1 and 5 rows"
    assert (tmp_path / "m.kept").read_text() == "float32"
    errors[0] = 0.1
    with pytest.raises(cellerate.CellerateError, match=r"its error is 0\.1, and at most 0\.01 is right"):
        cellerate.export(model, tmp_path / "other.kept", to="kept")
    assert not (tmp_path / "other.kept").exists()
    with pytest.raises(cellerate.CellerateError, match="to must be one of onnx, savedmodel, litert, kept"):
        cellerate.export(model, tmp_path / "m.pb", to="pb")


def test_help_of_the_command_line_names_every_format_and_its_precisions(monkeypatch) -> None:
    from cellerate.cli.main import app

    monkeypatch.setenv("COLUMNS", "200")
    shown = " ".join(CliRunner().invoke(app, ["export", "--help"]).output.split())
    for form in registry.FORMATS.values():
        assert f"{form.name}: {', '.join(form.precisions)}" in shown
