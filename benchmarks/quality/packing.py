"""The quality that packing costs: a text model is trained, packed in each precision, and judged on the held-out tail.

This case measures how well a packed model predicts, `generation` how fast. Packed models read the tail from end to end
and carry their state; Keras judges windows, each from a state of zeros. The packed model in float32 also judges these
windows, and must agree with Keras.
"""

import tempfile
from pathlib import Path
from typing import Any

import cellerate
from benchmarks.precisions import PRECISIONS
from benchmarks.processes import report_of
from cellerate.data.text import open_text

ON_JAX = ("--backend", "jax", "--json")
EMBEDDING, UNITS, EPOCHS = 256, 512, 3
LENGTH, HELD_OUT = 100, 0.05
OPTIONS = [
    "--precision",
    "mixed_bfloat16",
    "--batch-size",
    "128",
    "--learning-rate",
    "0.002",
    "--clipnorm",
    "1",
]
# The allowed loss of a packed model against float32.
GOALS = {"bfloat16": 0.003, "int8": 0.01}
# Keras evaluates in bfloat16, the training precision.
MOST_APART = 0.003


def run(book: Path, *, quick: bool) -> dict[str, Any]:
    """Train, pack and evaluate; a quick run trains a small model on a small part of the book.

    Raises:
        RuntimeError: The packed model's result for the tail's windows differs from Keras's.
    """
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        units, epochs = (64, 1) if quick else (UNITS, EPOCHS)
        if quick:
            text = book.read_text(encoding="utf-8-sig")[:300_000]
            book = folder / book.name
            book.write_text(text)
        model = folder / "book.keras"
        size = ["--embedding", EMBEDDING, "--units", units, "--epochs", epochs, "--length", LENGTH]
        cut = ["--validation-fraction", HELD_OUT, "--quiet"]
        report = report_of("train", "text", book, "-o", model, *size, *cut, *OPTIONS, *ON_JAX)
        keras = report_of("evaluate", model, book, "--part", "held-out", *ON_JAX)
        found: dict[str, Any] = {
            "book": book.name,
            "model": {"embedding": EMBEDDING, "units": units, "layers": 1},
            "epochs": epochs,
            "training_s": report["training"]["seconds"],
            "keras": {
                "bytes": model.stat().st_size,
                "windows_bits_per_character": keras["bits_per_character"],
            },
            "packed": {},
        }
        for precision in PRECISIONS:
            path = folder / f"{precision}.cell"
            report_of("pack", model, "-o", path, "--precision", precision, *ON_JAX)
            found["packed"][precision] = _judge(cellerate.load(path), book) | {"bytes": path.stat().st_size}
        _compare(found, _windows(cellerate.load(folder / "float32.cell"), book))
    return found


def _judge(model: Any, book: Path) -> dict[str, Any]:
    """Bits per character of the whole tail, read from start to end."""
    score = model.score(_tail(model, book), context=None)
    return {"bits_per_character": score.bits_per_character, "characters": score.characters}


def _windows(model: Any, book: Path) -> float:
    """Bits per character of windows of the tail, each predicted from a state of zeros, as Keras judges."""
    text = _tail(model, book)
    # The last character of a window is the first of the next; every character but the first is predicted once.
    scores = model.score([text[at : at + LENGTH + 1] for at in range(0, len(text) - 1, LENGTH)], context=None)
    return sum(s.bits_per_character * s.tokens for s in scores) / sum(s.tokens for s in scores)


def _tail(model: Any, book: Path) -> str:
    text = open_text([str(book)], tokenizer=model.tokenizer)
    return text.tokenizer.decode(text.split(HELD_OUT)[1])


def _compare(found: dict[str, Any], windows: float) -> None:
    packed, keras = found["packed"], found["keras"]
    packed["float32"]["windows_bits_per_character"] = windows
    apart = abs(windows / keras["windows_bits_per_character"] - 1)
    if not apart <= MOST_APART:
        raise RuntimeError(f"on windows Keras and the packed float32 model are {apart:.2%} apart")
    print(
        f"Keras    {keras['windows_bits_per_character']:.4f} bits per character of windows, {keras['bytes']:,} bytes"
    )
    print(f"float32  {windows:.4f} bits per character of windows, packed")
    for precision, record in packed.items():
        worse = record["bits_per_character"] / packed["float32"]["bits_per_character"] - 1
        record |= {"increase": worse, "goal": GOALS.get(precision)}
        print(
            f"{precision:<8} {record['bits_per_character']:.4f} bits per character, state carried, {worse:+.3%}; "
            f"{record['bytes']:,} bytes",
            flush=True,
        )
