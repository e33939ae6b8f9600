"""The table of a hundred million rows."""

from typing import Any

from cellerate.format import percent, rounded, short


def scaled(result: dict[str, Any]) -> list[list[str]]:
    """A row for each part, then the huge file, then the peers."""
    packed, whole, small = (result[name] for name in ("pack whole", "train whole", "train small"))
    load, huge = result["load"], result["huge"]
    span = result["window"] + result["horizon"]
    rows = [
        [
            f"{packed['rows'] / 1e6:,.0f} M rows x {result['features']} float32, {packed['series']:,} series",
            "Time or speed",
            "Memory",
        ],
        [
            f"`cellerate data pack`: {packed['bytes_of_tables'] / 1e9:.1f} GB of Parquet",
            _seconds(packed["seconds"]),
            f"{_megabytes(packed['peak_bytes'] - packed['bytes_before'])} above the imports",
        ],
        [
            "`cellerate train series`: from the start of the process to the end of the first step",
            _seconds(whole["first_step_s"]),
            "",
        ],
        [
            f"the same, {whole['steps']:,} steps",
            f"{percent(whole['data_wait'])} of the time waiting for data",
            f"{_megabytes(whole['peak_bytes'])} in all; {_megabytes(small['peak_bytes'])} with a series of "
            f"{result['pack small']['rows'] / 1e6:.1f} M rows",
        ],
        [
            f"shuffled and scaled windows of {span} rows, one core",
            f"{_windows(load['windows_per_s'])}",
            f"{_megabytes(load['peak_bytes'])} in all",
        ],
        [
            f"{huge['rows'] / 1e6:,.0f} M rows, a file of holes: opened, planned, first batch",
            _seconds(huge["open_s"] + huge["first_batch_s"]),
            f"{_megabytes(huge['peak_bytes'])} in all after {huge['steps']:,} batches",
        ],
    ]
    for name, found in result["peers"].items():
        what, _, how = name.partition(", ")
        rows.append(
            [
                f"`{what}`, {how}: windows of {span} rows",
                f"{_windows(found['windows_per_s'])}, the first after {_seconds(found['first_batch_s'])}",
                f"{_megabytes(found['above_bytes'])} above the imports",
            ]
        )
    return rows


def _windows(rates: dict[str, float]) -> str:
    return f"{short(rates['median'])} windows/s"


def _seconds(seconds: float) -> str:
    return f"{rounded(seconds)} s"


def _megabytes(count: int) -> str:
    return f"{count / 1e6:,.0f} MB"
