import copy
import re

import pytest

from cellerate.listener import Callbacks
from cellerate.optimization.sweep import view
from cellerate.optimization.sweep.settings import SweepSettings
from cellerate.optimization.sweep.verdict import judge
from support.optimization.sweeps import failing, made_up, run_made_up


@pytest.fixture
def record(tmp_path, monkeypatch):
    made_up(monkeypatch, failing([32], "turn"))
    settings = SweepSettings(seconds=4.0)
    found = run_made_up(tmp_path, settings, batch_size="8..64", device="auto,cpu")
    found.verdict = judge(found) | {"command": "cellerate train series data --batch-size 8"}
    return found


def test_table_fits_a_terminal_and_names_failures(record):
    lines = list(view.lines_of(record))
    assert max(map(len, lines)) <= 79
    assert lines[0].split()[:2] == ["point", "ms"]
    assert any(line.startswith("batch size 64 *") for line in lines)
    assert sum("(chosen)" in line for line in lines) == 1
    assert any(line.startswith("batch size 8 (chosen)") for line in lines)
    assert any(line == "failed: batch size 32: it broke" for line in lines)
    # One row a point, one header row, and a note on the star.
    assert sum(point.measured for point in record.points) + 2 == len(
        [one for one in lines if "failed" not in one]
    )


def test_only_the_best_of_equal_points_is_marked_as_chosen(record):
    (best,) = [point for point in record.points if point.label == record.verdict["chosen"]]
    twin = copy.deepcopy(best)
    for judged in twin.judged:
        judged["losses"] = [loss + 1 for loss in judged["losses"]]
    record.points.append(twin)
    marked = [line for line in view.lines_of(record) if "(chosen)" in line]
    assert len(marked) == 1
    record.points.remove(twin)
    assert [line for line in view.lines_of(record) if "(chosen)" in line] == marked


def test_gpu_memory_has_its_own_column_if_a_point_used_it(record):
    from cellerate.report.bench_page import bench_html

    assert not any("on GPU" in line for line in view.lines_of(record))
    on_gpu = next(point for point in record.points if point.measured)
    on_gpu.peak_gpu_memory_bytes = 3_120_000_000
    lines = list(view.lines_of(record))
    assert max(map(len, lines)) <= 79
    assert "memory  on GPU" in re.sub(" {3,}", "  ", lines[0])
    assert sum("3.12 GB" in line for line in lines) == 1
    assert bench_html(view.page_of(record)).count("3.12 GB on the GPU") == 1


def test_long_labels_are_cut(record):
    for point in record.points:
        point.label = point.label + " with a name that is as long as a line of a terminal or longer than that"
    assert max(map(len, list(view.lines_of(record))[:4])) <= 79


def test_charts_have_a_line_for_each_device_and_implementation(record):
    assert view.axis_of(record) == "batch_size"
    assert [line.name for line in view.series_of(record, "batch_size")] == [
        "Cellerate",
        "stock Keras",
        "Cellerate, CPU",
        "stock Keras, CPU",
    ]
    for line in view.series_of(record, "batch_size"):
        assert [x for x, _ in line.points] == sorted(x for x, _ in line.points)


def test_page_has_the_verdict_the_charts_the_points_and_the_command(record, tmp_path):
    said = []
    files = view.draw(record, tmp_path, Callbacks(said.append))
    page = (tmp_path / "sweep.html").read_text()
    assert "What if: batch size, implementation, device" in page
    assert re.sub(r"\s+", " ", record.verdict["sentence"])[:40] in page
    assert "cellerate train series data --batch-size 8" in page
    for title in ("Time for a window", "Time of a step", "Validation loss after"):
        assert title in page
    assert "it broke" in page
    assert "<script" not in page
    assert {path.name for path in files} >= {"sweep.html"}


def test_charts_are_written_with_matplotlib_and_reported_missing_without(record, tmp_path, monkeypatch):
    said = []
    monkeypatch.setattr(view, "package_version", lambda name: None)
    assert [path.name for path in view.draw(record, tmp_path, Callbacks(said.append))] == ["sweep.html"]
    assert said == ["no chart was drawn: pip install 'cellerate[plots]'"]
    monkeypatch.undo()
    pytest.importorskip("matplotlib")
    view.draw(record, tmp_path, Callbacks())
    assert (tmp_path / "sweep.png").read_bytes().startswith(b"\x89PNG")
    assert "stock Keras" in (tmp_path / "sweep.svg").read_text()


def test_sweep_without_numbers_has_a_table_alone(tmp_path, monkeypatch):
    made_up(monkeypatch)
    found = run_made_up(tmp_path, SweepSettings(seconds=1.0), optimizer="adam,sgd")
    found.verdict = judge(found)
    assert view.axis_of(found) is None
    view.draw(found, tmp_path, Callbacks())
    page = (tmp_path / "sweep.html").read_text()
    assert "Charts" not in page
    assert "sgd" in page
