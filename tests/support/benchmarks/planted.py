"""Records as `run.py` writes them, made from old measured results, for the tests of publishing."""

import json
from pathlib import Path
from typing import Any

from benchmarks.records import RESULTS, ROOT
from support.benchmarks import planted_forecasts

# One record of each case, from when the tests were written: `benchmarks/results` keeps only the newest records.
MEASURED = Path(__file__).parents[2] / "benchmarks" / "records"
ZEN4, ZEN5 = "AMD Zen 4, AVX-512 with bfloat16 and VNNI", "AMD Zen 5, AVX-512 with bfloat16 and VNNI"
# Results of cases that are newer than the old records.
MADE_UP = {"forecasting": planted_forecasts.forecasting, "backtest": planted_forecasts.backtest}
QUIET = {"average": [0.1, 0.2, 0.3], "others": 0.01, "stolen": 0.0}


def record(case: str, **fields: Any) -> dict[str, Any]:
    """A valid record whose result comes from an old record of the case."""
    load = {"before": dict(QUIET), "during": {"others": 0.01, "stolen": 0.0}, "after": dict(QUIET)}
    name = "step" if case in MADE_UP else case.removesuffix("-avx2")
    planted = MEASURED / f"{name}.json"
    old = json.loads((planted if planted.exists() else max(RESULTS.glob(f"{name}-2*.json"))).read_text())
    if case in MADE_UP:
        old["result"] = MADE_UP[case]()
    for size in old["result"].get("sizes", ()) if case == "generate" else ():
        size["records"] += [
            one | {"job": one["job"].replace("generate", "loop")}
            for one in size["records"]
            if one["job"].startswith("generate ")
        ]
    if case == "typical-avx2":
        old["result"]["environment"] = {"CELLERATE_TARGET": "avx2"}
    if case == "optimize":
        old["result"]["runs"] = {"text": old["result"].pop("run")}
    return {
        "case": case,
        "date": "2026-12-01T00:00:00+00:00",
        "command": f"python benchmarks/run.py {case}",
        "commit": "0123456789ab",
        "clean": True,
        "anyway": False,
        "machine": old["machine"] | {"processor": ZEN4, "memory_speed": None},
        "versions": old["versions"],
        "measured": {"csrc": "0"},
        "allocator": {"library": "glibc 2.36", "preloaded": [], "environment": {}},
        "threads": {"core": 2, "environment": {}},
        "kernel": "avx512bf16",
        "load": load,
        "result": old["result"],
        "seconds": 60.0,
    } | fields


def write(folder: Path, record: dict[str, Any]) -> None:
    """Write a record where the pages look for it."""
    name = f"{record['case']}-{record['date'][:19].replace(':', '')}.json"
    (folder / name).write_text(json.dumps(record))


def page() -> Path:
    """One of the pages."""
    return ROOT / "docs" / "measured" / "training.md"
