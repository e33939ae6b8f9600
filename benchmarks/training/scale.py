"""A hundred million rows on the disk: packing them, the first step of a training, windows a second, and memory.

Several thousand series of unequal length, generated from a seed, are in partitioned Parquet files. Each part runs in a
separate process, for its own memory. Beside Cellerate stand the usual ways in Keras and torch, the most convenient
first. They get the matrix ready in a memory map, which favours them: they need not read the tables, nor keep series
apart.
"""

import argparse
import contextlib
import itertools
import json
import os
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.processes import result_of

WINDOW, HORIZON, FEATURES, BATCH, SERIES = 49, 1, 5, 256, 4000
ROWS, QUICK_ROWS, SMALL_ROWS, HUGE_ROWS = 100_000_000, 1_000_000, 200_000, 1_000_000_000
FILE_ROWS = 2_000_000
STEPS = 1000
SECONDS = 4.0
PIECES = 5


def generate(folder: Path, rows: int) -> None:
    """Write the tables: a time, the name of the series, five features."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    folder.mkdir(parents=True)
    draw = np.random.default_rng(0)
    weights = draw.lognormal(0, 1, SERIES)
    lengths = np.maximum(1, (weights / weights.sum() * rows).astype(np.int64))
    lengths[np.argmax(lengths)] += rows - lengths.sum()
    ends = np.cumsum(lengths)
    names = pa.array([f"series {number}" for number in range(SERIES)])
    pace = 2 * np.pi / np.array([1440, 60, 10080, 600, 6000])
    for number, first in enumerate(range(0, rows, FILE_ROWS)):
        row = np.arange(first, min(rows, first + FILE_ROWS))
        series = np.searchsorted(ends, row, side="right")
        step = row - (ends - lengths)[series]
        values = np.sin((step[:, None] * pace).astype(np.float32))
        values += 0.1 * draw.standard_normal(values.shape, dtype=np.float32)
        columns = {
            "time": pa.array(np.datetime64("2020-01-01", "us") + step * np.timedelta64(60, "s")),
            "series": pa.DictionaryArray.from_arrays(pa.array(series.astype(np.int32)), names),
            **{f"x{column}": pa.array(values[:, column]) for column in range(FEATURES)},
        }
        path = folder / f"{number:05d}.parquet"
        pq.write_table(
            pa.table(columns), path, row_group_size=1 << 20, compression="NONE", use_dictionary=["series"]
        )


def pack(data: Path, output: Path) -> dict[str, Any]:
    """Pack the tables."""
    from cellerate.data.series import pack_series
    from cellerate.data.settings import Reading

    before, start = peak_bytes(), time.perf_counter()
    packed = pack_series(data, output, Reading(series_column="series"))
    return {
        "seconds": time.perf_counter() - start,
        "rows": len(packed.values),
        "series": len(packed.names),
        "bytes_before": before,
        "peak_bytes": peak_bytes(),
        "bytes_of_tables": sum(path.stat().st_size for path in data.iterdir()),
        "bytes_of_pack": sum(path.stat().st_size for path in output.iterdir()),
    }


def train(data: Path, output: Path) -> dict[str, Any]:
    """Train for some steps, as `cellerate train series` does; times count from the start of the process."""
    from cellerate.cli.backend import start_backend

    start_backend("jax")
    from cellerate.tasks.series import train_on_series
    from cellerate.tasks.settings import ForecastArchitecture, SeriesOptions
    from cellerate.training.run import RunOptions
    from cellerate.training.settings import TrainingSettings
    from cellerate.training.telemetry import Display

    class Enough(Exception):  # noqa: N818 (not an error)
        pass

    class Watch(Display):
        first_s: float | None = None
        waited = 0.0

        def data_wait(self, share: float) -> None:
            self.waited = share

        def step(self, epoch: int, step: int, logs: Any) -> None:
            if self.first_s is None:
                self.first_s = since_start()
            if step >= STEPS:
                raise Enough

    watch = Watch()
    options = SeriesOptions(paths=[data], target=["x0"], window=WINDOW, horizon=HORIZON, batch_size=BATCH)
    with contextlib.suppress(Enough):
        train_on_series(
            options,
            RunOptions(output=output, training=TrainingSettings(log_every=STEPS), display=watch),
            architecture=ForecastArchitecture(units=64),
        )
    return {
        "first_step_s": watch.first_s,
        "steps_s": since_start(),
        "steps": STEPS,
        "data_wait": watch.waited,
        "peak_bytes": peak_bytes(),
    }


def load(data: Path, output: Path) -> dict[str, Any]:
    """Windows a second, scaled and shuffled, as training gets them."""
    from cellerate.data.series import open_series
    from cellerate.data.settings import Reading
    from cellerate.data.windows import Scaler, SeriesBatches, WindowSettings

    start = time.perf_counter()
    series = open_series(data, Reading(targets=["x0"]))
    opened = time.perf_counter()
    split = series.split()
    scaler = Scaler.fit(split.train)
    fitted = time.perf_counter()
    source = SeriesBatches(
        split.train,
        WindowSettings(window=WINDOW, horizon=HORIZON, batch_size=BATCH, seed=0),
        scaler,
    )
    batches = itertools.chain.from_iterable(map(source.batches, itertools.count()))
    next(batches)
    return {
        "open_s": opened - start,
        "scaler_s": fitted - opened,
        "first_batch_s": time.perf_counter() - fitted,
        "windows": len(source) * BATCH,
        "windows_per_s": rates(batches),
        "peak_bytes": peak_bytes(),
    }


def huge(data: Path, output: Path) -> dict[str, Any]:
    """Open and plan a billion rows in a sparse file, and take batches from all over it."""
    from cellerate.data.series import PackedSeries, describe, open_series
    from cellerate.data.settings import Reading
    from cellerate.data.windows import SeriesBatches, WindowSettings

    rows = json.loads((data / "series.json").read_text())["rows"] * (HUGE_ROWS // ROWS)
    output.mkdir()
    values = np.lib.format.open_memmap(output / "values.npy", "w+", np.float32, (rows, FEATURES))
    edges = np.linspace(0, rows, SERIES + 1).astype(np.int64)
    segments = np.stack([edges[:-1], edges[1:], np.arange(SERIES)], axis=1)
    columns = tuple(f"x{column}" for column in range(FEATURES))
    names = tuple(map(str, range(SERIES)))
    settings = {
        "time_column": None,
        "series_column": "id",
        "missing": "error",
        "gaps": "split",
        "dtype": "float32",
    }
    describe(
        output,
        PackedSeries(values, columns, None, segments, names, np.empty(0), settings, "holes"),
        in_place=False,
    )
    del values
    start = time.perf_counter()
    split = open_series(output, Reading(targets=["x0"])).split()
    opened = time.perf_counter()
    source = SeriesBatches(
        split.train, WindowSettings(window=WINDOW, horizon=HORIZON, batch_size=BATCH, seed=0)
    )
    batches = source.batches(0)
    next(batches)
    first = time.perf_counter()
    for _ in range(STEPS):
        next(batches)
    for index in range(0, len(source), max(1, len(source) // 200)):
        source.batch(1, index)
    return {
        "rows": rows,
        "open_s": opened - start,
        "first_batch_s": first - opened,
        "steps": STEPS,
        "peak_bytes": peak_bytes(),
    }


def keras_way(data: Path, output: Path) -> dict[str, Any]:
    """`keras.utils.timeseries_dataset_from_array`, shuffled, of the whole matrix in memory."""
    os.environ["KERAS_BACKEND"] = "tensorflow"
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")
    import keras

    base, start = peak_bytes(), time.perf_counter()
    values = np.load(data / "values.npy")
    dataset = keras.utils.timeseries_dataset_from_array(
        values[:-WINDOW], values[WINDOW:, :1], WINDOW, batch_size=BATCH, shuffle=True, seed=1
    )
    batches = iter(dataset.repeat())
    next(batches)
    first = time.perf_counter() - start
    return {"first_batch_s": first, "windows_per_s": rates(batches), "above_bytes": peak_bytes() - base}


def torch_way(data: Path, output: Path) -> dict[str, Any]:
    """A torch `Dataset` over the memory map, a window an item, shuffled by `DataLoader` with a worker a core."""
    import torch

    class Windows(torch.utils.data.Dataset[Any]):
        def __init__(self) -> None:
            self.values = np.load(data / "values.npy", mmap_mode="r")

        def __len__(self) -> int:
            return len(self.values) - WINDOW

        def __getitem__(self, place: int) -> Any:
            return self.values[place : place + WINDOW].copy(), self.values[place + WINDOW, :1].copy()

    base, start = peak_bytes(), time.perf_counter()
    workers = os.cpu_count() or 1
    loader = torch.utils.data.DataLoader(
        Windows(), BATCH, shuffle=True, num_workers=workers, prefetch_factor=8
    )
    batches = iter(loader)
    next(batches)
    first = time.perf_counter() - start
    found = rates(batches)
    of_workers = sum(peak_bytes(worker.pid) for worker in batches._workers)  # type: ignore[attr-defined]
    return {"first_batch_s": first, "windows_per_s": found, "above_bytes": peak_bytes() - base + of_workers}


def rates(batches: Iterator[Any]) -> dict[str, float]:
    """Windows a second of several pieces: the median, and the slowest and fastest."""
    found = []
    for _ in range(PIECES):
        count, start = 0, time.perf_counter()
        while (seconds := time.perf_counter() - start) < SECONDS / PIECES or not count:
            next(batches)
            count += BATCH
        found.append(count / seconds)
    return {"median": statistics.median(found), "least": min(found), "most": max(found)}


def peak_bytes(process: int | str = "self") -> int:
    """The most memory that a process has held, with the pages of memory maps; `ru_maxrss` counts its parent's, too."""
    lines = Path(f"/proc/{process}/status").read_text().splitlines()
    return next(int(line.split()[1]) << 10 for line in lines if line.startswith("VmHWM"))


def since_start() -> float:
    """Seconds since this process was started."""
    ticks = int(Path("/proc/self/stat").read_text().rpartition(")")[2].split()[19])
    return time.clock_gettime(time.CLOCK_BOOTTIME) - ticks / os.sysconf("SC_CLK_TCK")


PARTS: dict[str, Callable[[Path, Path], dict[str, Any]]] = {
    "pack": pack,
    "train": train,
    "load": load,
    "huge": huge,
    "keras": keras_way,
    "torch": torch_way,
}


def part(name: str, data: Path, output: Path) -> dict[str, Any]:
    """Run one part in a separate process."""
    found = result_of("training.scale", name, str(data), str(output))
    print(name, json.dumps(found), flush=True)
    return found


def run(*, quick: bool) -> dict[str, Any]:
    """All parts."""
    rows = QUICK_ROWS if quick else ROWS
    result: dict[str, Any] = {"window": WINDOW, "horizon": HORIZON, "features": FEATURES, "batch_size": BATCH}
    with tempfile.TemporaryDirectory(prefix="cellerate-scale-") as place:
        folder = Path(place)
        os.environ["CELLERATE_CACHE"] = str(folder / "cache")
        packed = {}
        for name, count in (("small", SMALL_ROWS), ("whole", rows)):
            generate(folder / name, count)
            packed[name] = folder / f"{name}.series"
            result[f"pack {name}"] = part("pack", folder / name, packed[name])
            result[f"train {name}"] = part("train", packed[name], folder / f"{name}.keras")
        result["load"] = part("load", packed["whole"], folder)
        result["huge"] = part("huge", packed["whole"], folder / "huge.series")
        result["peers"] = {
            "keras.utils.timeseries_dataset_from_array, in memory": part("keras", packed["whole"], folder),
            "torch Dataset and DataLoader, from the memory map": part("torch", packed["whole"], folder),
        }
    return result


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("part", choices=PARTS)
    parser.add_argument("data", type=Path)
    parser.add_argument("output", type=Path)
    arguments = parser.parse_args()
    print(json.dumps(PARTS[arguments.part](arguments.data, arguments.output)))
