"""The parts that a task holds out: one to choose by, and one to judge the choice on."""

import numpy as np
import pytest

from cellerate.tasks.settings import (
    AutoencoderArchitecture,
    ForecastArchitecture,
    LineOptions,
    SeriesOptions,
    TextArchitecture,
    TextOptions,
)
from cellerate.training.run import RunOptions

pytestmark = pytest.mark.keras
# No window of it occurs twice.
TEXT = "".join(np.random.default_rng(0).choice(list("abcdefghij "), 8000))


@pytest.fixture
def tasks(tmp_path):
    """A function that opens and builds a task, with batches of some size."""
    from cellerate.tasks.embed import LineTask
    from cellerate.tasks.series import SeriesTask
    from cellerate.tasks.text import TextTask

    (tmp_path / "t.txt").write_text(TEXT)
    (tmp_path / "l.txt").write_text("\n".join(f"line {n * n}" for n in range(200)))
    rows = [f"{np.sin(n / 5):.4f}" for n in range(300)]
    (tmp_path / "s.csv").write_text("\n".join(["load", *rows]) + "\n")
    run = RunOptions(output="unused.keras")

    def opened(kind, rows=8, **options):
        if kind == "text":
            data = TextOptions(
                paths=[tmp_path / "t.txt"],
                **{"length": 10, "validation_fraction": 0.2, "batch_size": rows, **options},
            )
            task = TextTask(data, run, TextArchitecture(units=4, embedding=4))
        elif kind == "series":
            data = SeriesOptions(
                paths=[tmp_path / "s.csv"],
                **{"target": ["load"], "window": 6, "horizon": 2, "batch_size": rows, **options},
            )
            task = SeriesTask(data, run, ForecastArchitecture(units=4))
        else:
            data = LineOptions(
                path=tmp_path / "l.txt", **{"validation_fraction": 0.2, "batch_size": rows, **options}
            )
            task = LineTask(data, run, AutoencoderArchitecture(units=4, embedding=4, latent=3))
        task.open()
        task.build()
        return task

    return opened


def rows_of(source):
    """The rows of all batches that count, without what fills batches up."""
    found = []
    for index in range(len(source)):
        x, y, weight = source.batch(0, index)
        first = x["source"] if isinstance(x, dict) else x
        real = weight.reshape(len(weight), -1).any(axis=1)
        found += [
            (bytes(np.trim_zeros(np.ravel(a), "b")), bytes(b))
            for a, b in zip(first[real], y[real], strict=True)
        ]
    return found


@pytest.mark.parametrize("kind", ["text", "series", "embed"])
def test_parts_are_the_same_whatever_the_batches_of_training_are(tasks, kind):
    one, other = tasks(kind, rows=4).held_out(16), tasks(kind, rows=32).held_out(16)
    for first, second in zip(one, other, strict=True):
        assert first.batch_size == second.batch_size
        assert rows_of(first) == rows_of(second)


@pytest.mark.parametrize("kind", ["text", "series", "embed"])
def test_parts_share_no_row_with_each_other(tasks, kind):
    validation, test = map(rows_of, tasks(kind).held_out(8))
    assert validation
    assert test
    assert not {*validation} & {*test}


def test_part_that_holds_nothing_is_none(tasks):
    assert tasks("text", validation_fraction=0.0).held_out(8) == (None, None)
    assert tasks("embed", validation_fraction=0.0).held_out(8) == (None, None)
    assert tasks("series", train_fraction=0.9, validation_fraction=0.1).held_out(8)[1] is None


def test_both_halves_of_a_text_are_what_training_holds_out(tasks):
    task = tasks("text")
    _, whole = task.sources()
    parts = task.held_out(8)
    assert sum(len(rows_of(part)) for part in parts) in (len(rows_of(whole)), len(rows_of(whole)) + 1)
