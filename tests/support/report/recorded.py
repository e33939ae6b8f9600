"""The stages and candidates of a run of `optimize` on a text model, made by hand."""

import dataclasses
import math

from cellerate.report.quality import Interval
from cellerate.report.record import (
    Candidate,
    Change,
    Curve,
    SampleOutput,
    Speed,
    StageRecord,
)


def interval(value, reach):
    return Interval(value=value, low=value - reach, high=value + reach)


def speed(way, p50, throughput=None, batch=64):
    return Speed(
        way=way,
        latency_p50_ms=p50,
        latency_p99_ms=1.7 * p50,
        per_s=960 / p50,
        throughput_per_s=throughput,
        batch=batch,
    )


def candidate(name, title, made_by, precision, parameters, size, quality, loss, speeds, **more):
    return Candidate(
        id=name,
        title=title,
        made_by=made_by,
        precision=precision,
        parameters=parameters,
        file_bytes=size,
        quality=interval(quality, 0.011),
        loss=None if loss is None else interval(loss, 0.0016),
        speeds=speeds,
        **{"passes_gate": loss is None or loss <= 0.01, "file": f"models/{name}.cell"} | more,
    )


STORY = "Well, Prince, so Genoa and Lucca are now"
WRITTEN = {
    "original": " the same things of the house, and the count was\nstanding at the door with a letter.\n\n“What is",
    "packed": " the same things of the house, and the count was\nstanding at the door with a letter.\n\n“What is",
    "int8": " the same thing as the house, and the count had\nstood at the window with the letter.\n\n“And what",
    "pruned-75-int8": " the same to the house. The count, who was always\nat the table, took the princess by the",
    "pruned-50-int8": " the same of the had the cound of the stander,\nand the the princess was a said the to the head",
    "student-int8": " a great deal of the regiment, and the officers\nwere in the same room. “I know that,” said he",
    "untaught-int8": " the consider of the says and the regiment of\nthe prince was the same to the counted and",
}


def text_candidates():
    whole, small = 1_643_107, 402_771
    student, twin = "A student of 25 % of the weights", "The same student of 25 %, trained without a teacher"
    keras = (speed("predict", 41.3), speed("predict_on_batch", 2.31, 9_840.0))
    packed = (
        # id, title, made by, precision, weights, bytes, bits, loss, ms, characters/s many at a time
        ("packed", "Packed, float32", "precision", "float32", whole, 6_590_112, 1.9473, 0.0, 0.0614, 262e3),
        ("bfloat16", "Packed, bfloat16", "precision", "bfloat16", whole, 3_301_440, 1.9475, 1e-4, 0.0388, 401e3),
        ("int8", "Packed, int8", "quantize", "int8", whole, 1_702_880, 1.9508, 0.0018, 0.0198, 688e3),
        ("pruned-75-int8", "Pruned to 75 %, int8", "prune", "int8", 981_200, 1_031_004, 1.9622, 0.0077, 0.0151, 893e3),
        ("pruned-50-int8", "Pruned to 50 %, int8", "prune", "int8", 480_116, 524_900, 2.1310, 0.0943, 0.0104, 1_214e3),
        ("student-int8", f"{student}, int8", "distill", "int8", small, 441_300, 2.0411, 0.0482, 0.0089, 1_391e3),
        ("untaught-int8", f"{twin}, int8", "distill", "int8", small, 441_300, 2.0874, 0.0719, 0.0090, 1_388e3),
    )  # fmt: skip
    return (
        candidate(
            "original", "Original, Keras", "baseline", "float32", whole, 19_850_331, 1.9473, None, keras,
            on_front=True, sample=SampleOutput(STORY, WRITTEN["original"]), file="models/original.keras",
        ),
        *(
            candidate(
                *row, (speed("packed", latency, many),), on_front=row[0] in ("packed", "int8", "pruned-75-int8"),
                sample=SampleOutput(STORY, WRITTEN["packed" if row[0] == "bfloat16" else row[0]]),
            )
            for *row, latency, many in packed
        ),
        dataclasses.replace(
            candidate(
                "student-bfloat16", f"{student}, bfloat16", "distill", "bfloat16", small, 0, 1, None, (), file=None,
                passes_gate=False,
                error="The packed file could not be written: no space was left on the device.",
            ),
            quality=None,
        ),
    )  # fmt: skip


def text_stages():
    batches = (16, 32, 64, 128, 256, 512)
    keras = (11_200, 16_900, 21_400, 26_300, 27_700, 27_900)
    ours = (61_000, 98_200, 139_000, 171_000, 186_400, 187_100)
    steps = tuple(float(n) for n in range(0, 2001, 5))
    speed_title, loss, bits = "Training speed by batch size", "Loss while fine-tuning", "bits per character"
    curve = {"x_label": "batch size", "log_x": True, "x": batches}
    return (
        StageRecord(
            "baseline",
            "Baseline",
            "done",
            48.2,
            "It was measured as it is.",
            False,
            facts=(("Weights", "1,643,107"),),
        ),
        StageRecord(
            "kernels",
            "Fused kernels",
            "done",
            61.7,
            "Both LSTM layers run on cellerate-cpu: a training step takes 97 ms instead of 506 ms.",
            True,
            gains=(Change("training", "training step, batch of 128", 26_300, 139_300, "characters/s", True),),
            facts=(("Target", "avx512bf16"), ("Layers accelerated", "2 of 2")),
        ),
        StageRecord(
            "batch",
            "Batch size",
            "done",
            122.9,
            "256 rows train 9 % faster than 128; 512 rows gain nothing more.",
            True,
            gains=(
                Change("training", "training step", 171_000, 186_400, "characters/s", True),
                Change("training", "peak memory", 1_304_000_000, 2_150_000_000, "bytes", False),
            ),
            curves=(
                Curve(speed_title, "Keras", y_label="characters a second", y=keras, **curve),
                Curve(
                    speed_title,
                    "cellerate",
                    y_label="characters a second",
                    y=ours,
                    marks=((4, "proposed"),),
                    **curve,
                ),
                Curve(
                    "Memory by batch size",
                    "peak",
                    y_label="GB",
                    y=(0.61, 0.72, 0.93, 1.30, 2.15, 3.94),
                    marks=((4, "proposed"),),
                    **curve,
                ),
            ),
            notes=(
                "The learning rate that belongs to it is 0.00141: the old one times the square root of 2.",
            ),
        ),
        StageRecord(
            "length", "Window length", "skipped", reason="The model keeps its state between windows."
        ),
        StageRecord(
            "pipeline",
            "Input pipeline",
            "done",
            12.0,
            "Batches are ready before they are needed: nothing to gain.",
            False,
            gains=(Change("training", "waiting for data, share of a step", 0.4, 0.4, "%", False),),
        ),
        StageRecord(
            "precision",
            "Packed",
            "done",
            33.1,
            "bfloat16 loses nothing that can be measured, and is 1.6x faster.",
            True,
            gains=(
                Change("use", "one character", 2.31, 0.0614, "ms", False),
                Change("size", "file", 19_850_331, 6_590_112, "bytes", False),
            ),
        ),
        StageRecord(
            "quantize",
            "Quantised to int8",
            "done",
            71.4,
            "int8 costs 0.18 % (at most 0.34 %), less than the 1 % that is allowed.",
            True,
            gains=(
                Change("use", "one character", 0.0614, 0.0198, "ms", False),
                Change("size", "file", 6_590_112, 1_702_880, "bytes", False),
            ),
            notes=("4 of 2,048 columns are clipped.",),
        ),
        StageRecord(
            "prune",
            "Pruned",
            "done",
            604.0,
            "Half of the units cost 9.4 %, a quarter 0.77 %.",
            True,
            gains=(
                Change("use", "one character", 0.0198, 0.0151, "ms", False),
                Change("size", "file", 1_702_880, 1_031_004, "bytes", False),
            ),
            curves=(
                Curve(
                    loss,
                    "50 % kept",
                    "step",
                    bits,
                    steps,
                    tuple(2.1 + 0.8 * math.exp(-n / 400) for n in steps),
                ),
                Curve(loss, "75 % kept", "step", bits, steps, tuple(1.9 + 0.05 * math.cos(n) for n in steps)),
            ),
        ),
        StageRecord(
            "distill",
            "Distilled",
            "failed",
            201.3,
            reason="TrainingError: the loss is no longer a number.",
            curves=(
                Curve(
                    "Loss of the student",
                    "192 units",
                    "step",
                    bits,
                    steps[:62],
                    tuple(2.04 + 2 * math.exp(-n / 90) for n in steps[:62]),
                ),
            ),
        ),
    )
