"""What may be published: records of committed code on a quiet machine that lack nothing and whose checks are green."""

import ast
import copy
import json
import shutil

import pytest

from benchmarks import cases, measured, pages, publishing, records
from benchmarks.gpu import figures
from benchmarks.publishing import FIELDS, MOST_OTHERS, MOST_STOLEN, published, unpublishable
from support.benchmarks import planted


def without(record, name):
    record = copy.deepcopy(record)
    *way, last = name.split(".")
    inner = record
    for part in way:
        inner = inner[part]
    del inner[last]
    return record


def with_load(when, **shares):
    record = copy.deepcopy(planted.record("step"))
    record["load"][when] = record["load"][when] | shares
    return record


def test_whole_record_is_published():
    assert unpublishable(planted.record("step")) == []


@pytest.mark.parametrize("name", FIELDS)
def test_record_that_lacks_a_field_is_refused(name):
    found = unpublishable(without(planted.record("step"), name))
    assert found[0] == f"it lacks {name}"


@pytest.mark.parametrize("name", ["machine.processor", "kernel", "load.during.others", "allocator.library"])
def test_record_with_nothing_in_a_field_is_refused(name):
    record = copy.deepcopy(planted.record("step"))
    *way, last = name.split(".")
    inner = record
    for part in way:
        inner = inner[part]
    inner[last] = None
    assert any(f"lacks {name}" in why for why in unpublishable(record))


@pytest.mark.parametrize(
    "fields",
    [{"clean": False}, {"commit": "0123456789ab-dirty"}, {"commit": "unknown"}],
    ids=["changed", "dirty", "unknown"],
)
def test_record_of_code_that_is_no_commit_s_is_refused(fields):
    (why,) = unpublishable(planted.record("step", **fields))
    assert "not surely that of a commit" in why


def test_record_written_anyway_is_refused():
    assert unpublishable(planted.record("step", anyway=True)) == ["it was written with --anyway"]


@pytest.mark.parametrize("when", ["before", "during", "after"])
@pytest.mark.parametrize(("who", "most"), [("others", MOST_OTHERS), ("stolen", MOST_STOLEN)])
def test_record_of_a_loaded_machine_is_refused(when, who, most):
    assert unpublishable(with_load(when, **{who: most})) == []
    (why,) = unpublishable(with_load(when, **{who: most * 1.01}))
    assert when in why and ("other processes" if who == "others" else "virtual machines") in why


@pytest.mark.parametrize("case", publishing.UNTIMED)
def test_a_record_without_times_may_have_run_beside_other_work(case):
    busy = with_load("during", others=0.5) | {"case": case}
    assert not any("took" in why for why in unpublishable(busy | {"result": planted.record(case)["result"]}))


def test_records_of_the_old_form_are_refused():
    records = [json.loads(path.read_text()) for path in planted.MEASURED.glob("*.json")]
    old = [one for one in records if "measured" not in one]
    assert len(old) >= 10
    assert all(unpublishable(one) for one in old)


def test_results_are_the_newest_of_each_case_and_processor():
    kept = {path.name for path in records.RESULTS.glob("*.json")}
    needed = set()
    for case in {name.rsplit("-", 3)[0] for name in kept}:
        found = publishing.read(case)
        newest = {publishing.processor_of(one): one for one in reversed(found)}
        shown = [one for several in published(case).values() for one in several]
        needed |= {one["file"].name for one in [*newest.values(), *shown]}
    # The parts of the GPU suite may be of several runs.
    for several in pages.by_gpu().values():
        for parts in (*figures.TABLES.values(), ("crossover",)):
            if one := pages.newest_with(several, *parts):
                needed.add(one["file"].name)
    # The history has the others.
    assert sorted(kept - needed) == []


def test_generation_that_computes_something_else_is_refused():
    record = planted.record("generate")
    assert unpublishable(record) == []
    record["result"]["sizes"][1]["contestants"]["cellerate"]["errors"]["int8"] = 0.04
    (why,) = unpublishable(record)
    assert "cellerate, int8" in why
    # What took no part may have been wrong.
    record["result"]["sizes"][1]["contestants"]["cellerate"]["jobs"] = ["generate float32"]
    assert unpublishable(record) == []


def test_quality_beyond_its_goal_is_refused():
    record = planted.record("quality")
    assert unpublishable(record) == []
    record["result"]["packed"]["int8"]["increase"] = 0.011
    (why,) = unpublishable(record)
    assert "int8 is 1.1 % worse" in why


@pytest.mark.parametrize(("higher_is_better", "worse"), [(False, 1.021), (True, 0.979)])
def test_optimized_model_beyond_its_gate_is_refused(higher_is_better, worse):
    record = planted.record("optimize")
    (row,) = [one for one in record["result"]["runs"]["text"]["verdict"]["rows"] if one["quantity"] is None]
    row["higher_is_better"] = higher_is_better
    for factor in (worse, 2 - worse):
        row["after"] = row["before"] * factor
        found = unpublishable(record)
        assert [row["label"] in why for why in found] == ([True] if factor == worse else [])


def test_red_losses_refuse_training_on_that_processor_only(tmp_path):
    red = planted.record("loss", date="2026-12-02T00:00:00+00:00")
    ours = [one for one in red["result"]["losses"] if one["implementation"] == "cellerate-cpu"]
    ours[0]["mean_of_last_20"] *= 1.003
    for record in (red, planted.record("loss"), planted.record("step"), planted.record("generate")):
        planted.write(tmp_path, record)
    elsewhere = planted.record("step", date="2026-12-03T00:00:00+00:00")
    elsewhere["machine"]["processor"] = planted.ZEN5
    planted.write(tmp_path, elsewhere)
    assert list(published("step", tmp_path)) == [f"{planted.ZEN5}; 2 cores"]
    assert list(published("generate", tmp_path)) == [f"{planted.ZEN4}; 2 cores"]
    # A newer green one clears it.
    planted.write(tmp_path, planted.record("loss", date="2026-12-04T00:00:00+00:00"))
    assert len(published("step", tmp_path)) == 2


def test_published_is_the_newest_of_each_processor_and_others_of_its_code(tmp_path):
    for day, code, cores in ((1, "old", 2), (2, "new", 2), (3, "new", 2), (4, "new", 16)):
        record = planted.record("step", date=f"2026-12-0{day}T00:00:00+00:00", measured={"csrc": code})
        record["machine"] = record["machine"] | {"cores": cores}
        planted.write(tmp_path, record)
    planted.write(tmp_path, planted.record("step", date="2026-12-09T00:00:00+00:00", clean=False))
    found = published("step", tmp_path)
    days = {processor: [one["date"][8:10] for one in records] for processor, records in found.items()}
    assert days == {f"{planted.ZEN4}; 16 cores": ["04"], f"{planted.ZEN4}; 2 cores": ["03", "02"]}


def test_measured_paths_are_there_and_belong_to_a_case():
    assert measured.MEASURED.keys() <= cases.CASES.keys()
    assert {path for case in cases.CASES for path in measured.paths_of(case)} >= {
        "csrc",
        "src/cellerate/kernels",
    }
    assert all((records.ROOT / path).exists() for case in cases.CASES for path in measured.paths_of(case))


def test_changed_code_is_told_by_its_path_and_only_that_of_the_case(tmp_path):
    for path in (
        "csrc",
        "src/cellerate/kernels",
        "benchmarks/training/kernel.py",
        "benchmarks/training/steps.py",
    ):
        source, to = records.ROOT / path, tmp_path / path
        to.parent.mkdir(parents=True, exist_ok=True)
        shutil.copytree(source, to) if source.is_dir() else shutil.copy(source, to)
    record = {"case": "kernel", "measured": measured.digests("kernel", tmp_path)}
    assert measured.changed(record, tmp_path) == []
    (tmp_path / "benchmarks" / "training" / "steps.py").write_text("other")
    (tmp_path / "src" / "cellerate" / "kernels" / "lstm" / "cuda" / "lstm.cuh").write_text("other")
    assert measured.changed(record, tmp_path) == []
    assert measured.digests("gpu", tmp_path) != measured.digests("gpu", records.ROOT)
    (tmp_path / "csrc" / "new.h").write_text("other")
    assert measured.changed(record, tmp_path) == ["csrc"]
    assert measured.changed({"case": "kernel"}, tmp_path) == [*measured.paths_of("kernel")]


def programs(path):
    """The modules of `benchmarks/` that a measured path has."""
    place = records.ROOT / path
    files = (
        [place] if place.is_file() else [file for file in place.rglob("*.py") if file.name != "__init__.py"]
    )
    return {".".join(file.relative_to(records.ROOT).with_suffix("").parts) for file in files}


def imported(name):
    """The modules of `benchmarks/` that one of them uses, itself among them."""
    found, left = set(), [name]
    while left:
        name = left.pop()
        path = records.ROOT / f"{name.replace('.', '/')}.py"
        if path.exists() and name not in found:
            found.add(name)
            for node in ast.walk(ast.parse(path.read_text())):
                if isinstance(node, ast.ImportFrom) and str(node.module).startswith("benchmarks"):
                    left += [str(node.module), *(f"{node.module}.{one.name}" for one in node.names)]
    return found


@pytest.mark.parametrize("case", measured.MEASURED)
def test_measured_paths_have_every_program_that_the_case_runs(case):
    paths = [path for path in measured.paths_of(case) if path.startswith("benchmarks/")]
    given = set().union(*map(programs, paths))
    assert set().union(*map(imported, given - {"benchmarks.cases"})) <= given
