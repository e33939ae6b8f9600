"""A trained model in use, whole batches in one call: ids (B, T) in, logits (B, T, V) out, NumPy arrays both."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

import numpy as np

from cellerate.errors import CellerateError
from cellerate.format import counted
from cellerate.machine.environment import processors
from cellerate.observe.bench.jobs import Job, timed, timed_anew
from cellerate.observe.bench.model import (
    CHECKED_ROWS,
    PRECISIONS,
    Sizes,
    cell_file,
    error_of,
    read_truth,
    rows_of,
    weights_of,
)

Predict = Callable[[np.ndarray], object]


def packed_jobs(folder: Path, sizes: Sizes) -> Iterator[Job]:
    """The jobs of packed models, on their default number of threads."""
    from cellerate.runtime.packed import load

    for precision in PRECISIONS:
        path = cell_file(folder, precision)
        for rows in sizes.rows:
            job = _job(folder, sizes, rows, precision, "predict", {"as it comes": load(path).predict})
            ids = rows_of(read_truth(folder)["text"], sizes, rows)
            run = timed_anew(functools.partial(_loaded, path, ids))
            yield job._replace(ways={"as it comes": run}, anew=True)


def keras_jobs(folder: Path, sizes: Sizes) -> Iterator[Job]:
    """Keras's `predict_on_batch`, which compiles a model once for each shape."""
    from cellerate.observe.bench.training import keras_model

    model = keras_model(read_truth(folder), sizes)
    for rows in sizes.rows:
        ways = {"as it comes": model.predict_on_batch}
        yield _job(folder, sizes, rows, "float32", "predict_on_batch", ways)


def torch_jobs(folder: Path, sizes: Sizes) -> Iterator[Job]:
    """The jobs of torch.nn.LSTM, without gradients."""
    from cellerate.bridges.torch_bench import predictor

    weights = weights_of(read_truth(folder))
    for rows in sizes.rows:
        ways = {counted(count, "thread"): predictor(weights, count) for count in thread_counts()}
        yield _job(folder, sizes, rows, "float32", "a call", ways)


def runtime_jobs(folder: Path, sizes: Sizes, name: str) -> Iterator[Job | tuple[str, str, str]]:
    """The jobs of another runtime on our exports; for those it cannot run, the work, the precision and the reason."""
    from cellerate.observe.bench import runtimes

    for precision in runtimes.PRECISIONS[name]:
        for rows in sizes.rows:
            try:
                path = runtimes.exported(folder, name, precision, rows=rows)
            except CellerateError as error:
                yield work_of(rows), precision, str(error)
                continue
            calls = {
                counted(count, "thread"): runtimes.opened(name, path, ["logits"], count)
                for count in thread_counts()
            }
            ways = {way: functools.partial(_first, call) for way, call in calls.items()}
            yield _job(folder, sizes, rows, precision, "a call", ways)


def thread_counts() -> tuple[int, ...]:
    """The numbers of threads to try: one, and one for each processor."""
    return tuple(sorted({1, processors()}))


def work_of(rows: int) -> str:
    """The name of the work on a batch of `rows` rows."""
    # Not `counted`, whose separators would make it another name than in older records.
    return f"{rows} row{'s' * (rows > 1)}"


def _loaded(path: Path, ids: np.ndarray) -> Callable[[], object]:
    from cellerate.runtime.packed import load

    return functools.partial(load(path).predict, ids)


def _first(call: Callable[[dict[str, np.ndarray]], list[np.ndarray]], ids: np.ndarray) -> np.ndarray:
    return call({"ids": ids})[0]


def _job(
    folder: Path, sizes: Sizes, rows: int, precision: str, call: str, ways: Mapping[str, Predict]
) -> Job:
    truth = read_truth(folder)
    ids = rows_of(truth["text"], sizes, rows)

    def error(way: str) -> float:
        checked = min(CHECKED_ROWS, rows)
        found = np.asarray(ways[way](ids))
        return error_of(found[:checked], truth["logits"][:checked])

    run = {way: timed(functools.partial(predict, ids)) for way, predict in ways.items()}
    return Job(work_of(rows), call, precision, run, error, rows * sizes.steps)
