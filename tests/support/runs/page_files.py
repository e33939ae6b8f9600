"""The inputs of the code blocks on pages: files in a folder, and names that a page takes as known."""

from pathlib import Path
from typing import Any

import keras
import numpy as np
import pyarrow
from pyarrow import parquet

import cellerate

TEXT = "Well, Prince, the snow falls on Genoa and Lucca. Chapter I: what comes next, and who asks so late?\n"
_L = keras.layers
_SIZE = len(set(TEXT))


def write_files(folder: Path) -> None:
    """Write texts, tables and models for both, each as small as its page allows."""
    for name in ("book.txt", "other.txt"):
        (folder / name).write_text(TEXT * 150)
    (folder / "lines.txt").write_text(
        "\n".join(f"{word} hat {n}" for n in range(40) for word in ("red", "blue"))
    )
    random = np.random.default_rng(0)
    _write_table(folder / "prices.csv", "time,shop,price", _shops(random, 400, "{:.3f}"))
    _write_table(folder / "sales.csv", "time,shop,sold,price", _shops(random, 200, "{:.1f},{:.2f}"))
    (folder / "sales").mkdir()
    hours = pyarrow.array([_time(hour) for hour in range(200)])
    units = pyarrow.array(random.normal(5, 1, 200))
    columns = {"time": hours, "shop": pyarrow.array(["north"] * 200), "units": units}
    parquet.write_table(pyarrow.table(columns), folder / "sales" / "january.parquet")
    _write_table(
        folder / "prices-of-next-week.csv",
        "time,shop,price",
        [f"{_time(200 + hour)},{shop},2.5" for shop in ("north", "south") for hour in range(24)],
    )
    values = 20 + np.sin(np.arange(1500) / 24 * 2 * np.pi) + random.normal(0, 0.1, 1500)
    _write_table(
        folder / "ETTh1.csv",
        "date,HUFL,OT",
        [f"{_time(hour)},{value / 2:.3f},{value:.3f}" for hour, value in enumerate(values)],
    )
    for name in ("mine.keras", "old.h5"):
        text_model().save(folder / name)
    cellerate.train_text(folder / "book.txt", folder / "book.keras", units=16, epochs=1)
    cellerate.train_series(
        folder / "ETTh1.csv", folder / "ett.keras", target="OT", window=48, horizon=24, units=8, epochs=1
    )
    cellerate.train_embed(folder / "lines.txt", folder / "lines.keras", units=8, latent=4, epochs=1)
    for name in ("book", "ett", "lines"):
        cellerate.pack(folder / f"{name}.keras", folder / f"{name}.cell")
    cellerate.pack(_steps_model(), folder / "any.cell")


def known_names(page: str) -> dict[str, Any]:
    """The names that the blocks of a page take as known: a model, data of its shapes, and the like."""
    names: dict[str, Any] = {"cellerate": cellerate, "keras": keras, "np": np}
    if page in ("acceleration", "generating", "compressing", "profiling"):
        ids = np.random.default_rng(0).integers(0, _SIZE, (64, 13)).astype("int32")
        model, loss = text_model(), keras.losses.SparseCategoricalCrossentropy(from_logits=True)
        model.compile("adam", loss)
        x, y = ids[:, :-1], ids[:, 1:]
        names |= {"model": model, "loss": loss, "x": x, "y": y, "x_val": x, "y_val": y, "data": (x, y)}
        names["student"] = text_model()
    if page == "running":
        steps = np.zeros((1, 96, 3), np.float32)
        names |= {"x": steps, "inputs": steps, "result": np.empty((1, 96, 3), np.float32)}
        names |= {"readings": np.full((60, 2), 20.0, np.float32)}
        names |= {
            "new_steps": np.zeros((100, 2, 3), np.float32),
            "their_steps": np.zeros((2, 2, 3), np.float32),
        }
    if page == "training":
        names["vocabulary"] = _SIZE
    return names


def text_model() -> keras.Model:
    """A character model as people write it."""
    ids = keras.Input((None,), dtype="int32")
    hidden = _L.LSTM(16, return_sequences=True)(_L.Embedding(_SIZE, 8)(ids))
    return keras.Model(ids, _L.Dense(_SIZE)(hidden))


def _steps_model() -> keras.Model:
    """A model whose outputs have as many numbers a step as its inputs."""
    steps = keras.Input((None, 3))
    return keras.Model(steps, _L.Dense(3)(_L.LSTM(8, return_sequences=True)(steps)))


def _time(hour: int) -> str:
    return str(np.datetime64("2024-01-01T00:00") + np.timedelta64(hour, "h"))


def _shops(random: np.random.Generator, hours: int, written: str) -> list[str]:
    """The rows of two shops, hour by hour."""
    count = written.count("{")
    return [
        f"{_time(hour)},{shop},{written.format(*random.normal(5, 1, count))}"
        for shop in ("north", "south")
        for hour in range(hours)
    ]


def _write_table(path: Path, head: str, rows: list[str]) -> None:
    path.write_text("\n".join([head, *rows]) + "\n")
