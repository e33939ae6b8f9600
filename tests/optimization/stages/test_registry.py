"""One row makes a stage: it is offered, chosen, ordered, left out, reported and credited."""

import dataclasses
import json

import pytest

from cellerate.errors import ConfigError
from cellerate.optimization import workflow
from cellerate.optimization.listener import StageListener
from cellerate.optimization.settings import OptimizeSettings
from cellerate.optimization.stages.base import Stage
from cellerate.optimization.stages.loading import chosen_stages, load_stages
from cellerate.optimization.stages.registry import STAGES
from cellerate.report.record import StageRecord

pytestmark = [pytest.mark.keras, pytest.mark.usefixtures("here_probe", "quick")]


def test_every_row_names_its_class():
    kinds = load_stages()
    assert list(kinds) == list(STAGES)
    assert {name: kind.name for name, kind in kinds.items()} == {name: name for name in STAGES}


class Halve(Stage):
    """Make a model as good as all others and a little smaller."""

    name = "halve"
    title = "Halve the planted"
    changes_model = True

    def cost_s(self, context):
        return 0.0

    def run(self, context):
        made = context.consider("halved", "halved", self.name, context.original(), "int4")
        smaller = dataclasses.replace(made, file_bytes=made.file_bytes - 1)
        context.state.candidates[-1] = smaller
        return StageRecord(name=self.name, title=self.title, status="done", decision="halved it", kept=False)


class Round(Halve):
    """A stage that others build on."""

    name = "round"
    title = "Round"
    inherited = True

    def run(self, context):
        context.consider("rounded", "rounded", self.name, context.original(), "bfloat16")
        context.state.choices.packed_precision = "bfloat16"
        return StageRecord(name=self.name, title=self.title, status="done", decision="rounded", kept=True)


@pytest.fixture
def planted(plant):
    """Insert `Halve` after `Pack`, before all other stages."""
    rows = list(load_stages().items())
    return plant(dict([rows[0], ("halve", Halve), *rows[1:]]))


def go(made, folder, **settings):
    heard = []

    class Heard(StageListener):
        def begin(self, title):
            heard.append(title)

    given = OptimizeSettings(time_budget=100_000.0, steps=4, max_quality_loss=10.0, **settings)
    return workflow.run(made / "text.keras", made / "t.txt", folder, given, listener=Heard()), heard


def test_planted_stage_is_selected_in_order_and_can_be_skipped(planted):
    names = [name for name in STAGES if name != "pack"]
    assert list(chosen_stages(OptimizeSettings())) == ["pack", "halve", *names]
    assert list(chosen_stages(OptimizeSettings(skip=["halve"]))) == list(STAGES)
    assert list(chosen_stages(OptimizeSettings(only=["quantize", "halve"]))) == ["halve", "quantize"]
    # It changes the model, which a training alone must not.
    assert "halve" not in chosen_stages(OptimizeSettings(objective="training"))
    with pytest.raises(ConfigError, match=r"pack\W+halve\W+quantize"):
        OptimizeSettings(skip=["halves"])


def test_planted_stage_runs_in_order_and_gets_its_share_of_the_gain(made, tmp_path, planted):
    found, heard = go(made, tmp_path / "out", only=["quantize", "halve", "pack"], objective="size")
    # Stages that always run come first, and the table keeps its own order.
    assert heard == ["Baseline", "Pack", "Quantise", "Halve the planted", "Verdict"]
    by_name = {one.name: one for one in found.passes}
    assert list(by_name) == ["baseline", "pack", "halve", "quantize"]
    assert found.verdict.chosen == "halved"
    # The size falls from the original to the packed model to the planted stage's model; quantising has no share.
    sizes = {
        name: [(gain.before, gain.after) for gain in one.gains if gain.quantity == "size"]
        for name, one in by_name.items()
    }
    original, packed, halved = (
        next(one.file_bytes for one in found.candidates if one.id == name)
        for name in ("original", "float32", "halved")
    )
    assert sizes == {
        "baseline": [],
        "pack": [(original, packed)],
        "halve": [(packed, halved)],
        "quantize": [],
    }
    assert by_name["halve"].kept
    assert not by_name["quantize"].kept
    report = json.loads((tmp_path / "out" / "report.json").read_text())
    assert [one["name"] for one in report["passes"]] == ["baseline", "pack", "halve", "quantize"]
    for file in ("report.md", "report.html"):
        assert "Halve the planted" in (tmp_path / "out" / file).read_text()


def test_planted_stage_that_others_build_on_gets_its_share_of_the_gain(made, tmp_path, plant):
    kinds = load_stages()
    plant({"pack": kinds["pack"], "round": Round, "halve": Halve})
    found, _ = go(made, tmp_path / "out", objective="size")
    sizes = {one.id: one.file_bytes for one in found.candidates}
    gains = {
        one.name: [(gain.before, gain.after) for gain in one.gains if gain.quantity == "size"]
        for one in found.passes[1:]
    }
    assert gains == {
        "pack": [(sizes["original"], sizes["float32"])],
        "round": [(sizes["float32"], sizes["rounded"])],
        "halve": [(sizes["rounded"], sizes["halved"])],
    }
    assert all(one.kept for one in found.passes[1:])


def test_planted_stage_is_offered_by_the_command_line(planted, monkeypatch, capsys):
    from cellerate.cli import main

    words = [
        "cellerate",
        "optimize",
        "no such.keras",
        "--data",
        "t.txt",
        "--skip",
        "halve",
        "--only",
        "halve",
    ]
    monkeypatch.setattr("sys.argv", words)
    with pytest.raises(SystemExit):
        main.main()
    assert "cannot be used together" in capsys.readouterr().err
