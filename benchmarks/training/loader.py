"""The speed at which windows of a long file reach the trainer, and the memory that this takes.

Windows of 50 rows of 5 float32, batches of 64, shuffled, from memory-mapped files of 0.1, 1 and 4 GB; on the
smallest file the same work through `tf.data` `window().flat_map()` and
`keras.utils.timeseries_dataset_from_array`. Batches are compared with naive slices before anything is timed.
Each size runs in a separate process, for its own resident memory. One core makes the windows.
"""

import argparse
import json
import os
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.processes import result_of
from cellerate.data.windows import WindowSettings, WindowSource
from cellerate.machine.environment import resident_memory_bytes
from cellerate.measure import Timing, as_timing, time_alternating

WINDOW, FEATURES, BATCH = 50, 5, 64
SIZES_GB = (0.1, 1.0, 4.0)
PIECE_BATCHES = 2000  # batches a timing, for the loader
PEER_BATCHES = 300  # batches a timing, for the peers
FIRST_BATCHES = 10  # untimed, so that start-up costs do not count
PEER_ROWS = 1_000_000  # of the smallest file, which the peers hold in memory


def make_file(path: Path, gigabytes: float) -> None:
    """Write random numbers, a piece at a time."""
    rows = int(gigabytes * 1e9) // (4 * FEATURES)
    values = np.lib.format.open_memmap(path, mode="w+", dtype=np.float32, shape=(rows, FEATURES))
    draw = np.random.default_rng(0)
    for first in range(0, rows, 1 << 20):
        piece = values[first : first + (1 << 20)]
        piece[:] = draw.standard_normal(piece.shape, dtype=np.float32)
        piece[:, 0] = np.arange(first, first + len(piece)) % (1 << 24)  # identifies the row
    values.flush()


def source_of(path: Path) -> WindowSource:
    """The contestant."""
    return WindowSource(np.load(path, mmap_mode="r"), WindowSettings(window=WINDOW, batch_size=BATCH, seed=1))


def check(source: WindowSource, path: Path) -> None:
    """Compare batches from all over an epoch with naive slices, and `batches` with `batch`."""
    values = np.load(path, mmap_mode="r")
    for index in np.linspace(0, len(source) - 1, 40).astype(int):
        (x,) = source.batch(0, int(index))
        for window in x:
            row = int(window[0, 0])
            places = range(row, len(values) - WINDOW + 1, 1 << 24)
            if not any(np.array_equal(window, values[p : p + WINDOW]) for p in places):
                raise SystemExit(f"batch {index} of {path.name} is wrong; nothing was timed")
    for index, (x,) in zip(range(200, 400), source.batches(0, 200), strict=False):
        if not np.array_equal(x, source.batch(0, index)[0]):
            raise SystemExit(f"batches() and batch({index}) differ; nothing was timed")
    del values


def endless(source: WindowSource) -> Iterator[tuple[np.ndarray, ...]]:
    """Epoch after epoch."""
    epoch = 0
    while True:
        yield from source.batches(epoch)
        epoch += 1


def drawer(batches: Iterator[Any], count: int) -> Callable[[], None]:
    """A contestant that takes `count` more batches."""

    def draw() -> None:
        for _ in range(count):
            next(batches)

    return draw


def measure_size(path: Path, repeats: int) -> dict[str, Any]:
    """Measure the speed of `batches` and of `batch`, and the resident memory, in a separate process."""
    check(
        source_of(path), path
    )  # the check's memory map is closed afterwards, which frees its resident pages
    source = source_of(path)
    places = iter(range(10**9))

    def by_number() -> None:
        for _ in range(PIECE_BATCHES):
            place = next(places)
            source.batch(place // len(source), place % len(source))

    contestants = {"batches": drawer(endless(source), PIECE_BATCHES), "batch": by_number}
    time_alternating(contestants, repeats=0, warmup=2)
    before = resident_memory_bytes()
    timings = time_alternating(contestants, repeats=repeats, warmup=0)
    # A walk over the whole epoch shows any memory that grows with the file.
    for index in range(0, len(source), max(1, len(source) // 400)):
        source.batch(2, index)
    return {
        "rows": len(source._values),
        "plan": type(source._plan).__name__,
        "resident_bytes": resident_memory_bytes(),
        "resident_growth_bytes": resident_memory_bytes() - before,
        "windows": {name: rate(timing, PIECE_BATCHES) for name, timing in timings.items()},
    }


def measure_peers(path: Path, repeats: int) -> dict[str, Any]:
    """The peers and Cellerate in turn, over the same file."""
    os.environ["KERAS_BACKEND"] = "tensorflow"
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")
    import keras
    import tensorflow as tf

    import cellerate

    values = np.load(path, mmap_mode="r")
    rows = np.asarray(values[:PEER_ROWS])
    # In file order, because a shuffle buffer would make it slower. Cellerate and the other peer shuffle.
    flat = (
        tf.data.Dataset.from_tensor_slices(rows)
        .window(WINDOW, shift=1, drop_remainder=True)
        .flat_map(lambda window: window.batch(WINDOW, drop_remainder=True))
        .batch(BATCH)
        .prefetch(tf.data.AUTOTUNE)
    )
    series = keras.utils.timeseries_dataset_from_array(
        rows, None, WINDOW, batch_size=BATCH, shuffle=True, seed=1
    )
    for name, dataset in (("window().flat_map()", flat), ("timeseries_dataset_from_array", series)):
        window = next(iter(dataset))[3].numpy()
        if not np.array_equal(window, rows[int(window[0, 0]) :][:WINDOW]):
            raise SystemExit(f"{name} gave a wrong window; nothing was timed")
    own = cellerate.windows(values, None, WINDOW, batch_size=BATCH, shuffle=True, seed=1)
    contestants: dict[str, tuple[Callable[[], Iterator[Any]], int]] = {
        "cellerate": (lambda: iter(own), PIECE_BATCHES),
        "tf.data window().flat_map(), in order": (lambda: iter(flat), PEER_BATCHES),
        "keras.utils.timeseries_dataset_from_array, shuffled": (lambda: iter(series), PEER_BATCHES),
    }
    seconds: dict[str, list[float]] = {name: [] for name in contestants}
    for turn in range(1 + repeats):
        for name, (begin, count) in contestants.items():
            # A new iterator each turn, deleted at its end: its threads would keep working in the turns of others.
            batches = begin()
            for _ in range(FIRST_BATCHES):
                next(batches)
            start = time.perf_counter()
            for _ in range(count):
                next(batches)
            if turn:
                seconds[name].append(time.perf_counter() - start)
            del batches
    return {name: rate(as_timing(times), contestants[name][1]) for name, times in seconds.items()}


def rate(timing: Timing, batches: int) -> dict[str, float | int]:
    """Windows a second: median, and the 20th and 80th percentile."""
    speeds = as_timing([batches * BATCH / seconds for seconds in timing.seconds])
    return {
        "windows_per_s": speeds.median_s,
        "p20_windows_per_s": speeds.percentile_s(0.2),
        "p80_windows_per_s": speeds.percentile_s(0.8),
        "repeats": len(timing.seconds),
    }


def run(*, quick: bool) -> dict[str, Any]:
    """All sizes, then the peers."""
    sizes = SIZES_GB[:2] if quick else SIZES_GB
    repeats = 3 if quick else 15
    result: dict[str, Any] = {
        "window": WINDOW,
        "features": FEATURES,
        "batch_size": BATCH,
        "peer_rows": PEER_ROWS,
        "sizes": {},
    }
    with tempfile.TemporaryDirectory(prefix="cellerate-loader-") as folder:
        for gigabytes in sizes:
            path = Path(folder) / f"{gigabytes:g}GB.npy"
            make_file(path, gigabytes)
            found = result_of("training.loader", "size", str(path), str(repeats))
            result["sizes"][f"{gigabytes:g} GB"] = found
            speed, memory = found["windows"], found["resident_bytes"]
            print(
                f"{gigabytes:4g} GB  batches {speed['batches']['windows_per_s'] / 1e6:6.2f} M windows/s   "
                f"batch(e, i) {speed['batch']['windows_per_s'] / 1e6:6.2f} M windows/s   "
                f"resident {memory / 1e6:6.1f} MB",
                flush=True,
            )
            if gigabytes != sizes[0]:
                path.unlink()
        residents = [found["resident_bytes"] for found in result["sizes"].values()]
        result["resident_spread_bytes"] = max(residents) - min(residents)
        print(f"resident memory differs by {result['resident_spread_bytes'] / 1e6:.1f} MB over the sizes")
        smallest = str(Path(folder) / f"{sizes[0]:g}GB.npy")
        result["peers"] = result_of("training.loader", "peers", smallest, str(repeats))
        for name, found in result["peers"].items():
            print(f"{found['windows_per_s']:12,.0f} windows/s  {name}")
    return result


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("task", choices=["size", "peers"])
    parser.add_argument("file", type=Path)
    parser.add_argument("repeats", type=int)
    arguments = parser.parse_args()
    work = measure_size if arguments.task == "size" else measure_peers
    print(json.dumps(work(arguments.file, arguments.repeats)))
