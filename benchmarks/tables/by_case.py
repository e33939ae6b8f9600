"""The rows of each case's table, made of its result; `pages` puts them into the pages."""

from collections.abc import Callable
from typing import Any

from benchmarks.forecasting import table as forecasting_table
from benchmarks.precisions import PRECISIONS
from benchmarks.quality.optimizing import factor
from benchmarks.serving.table import served
from benchmarks.tables.standings import RUNTIMES, WAYS, inferring, microseconds, stepping
from benchmarks.training.planning import planned
from benchmarks.training.scale_table import scaled
from benchmarks.training.stages import staged
from cellerate.format import percent, quantity, rounded, short


def loader(result: dict[str, Any]) -> list[list[str]]:
    """A row a contestant."""
    rows = [["Shuffled windows of 50x5 float32, batch 64", "Windows/s", "Resident memory"]]
    for size, found in result["sizes"].items():
        speed = found["windows"]["batches"]["windows_per_s"]
        rows.append(
            [f"Cellerate, {size} file", f"{speed / 1e6:.1f} M", f"{found['resident_bytes'] / 1e6:.0f} MB"]
        )
    for name, found in result["peers"].items():
        if "cellerate" not in name.lower():
            rows.append([f"`{name}`, 0.1 GB", f"{found['windows_per_s'] / 1e3:.0f} k", ""])
    return rows


def text(result: dict[str, Any]) -> list[list[str]]:
    """A row a backend."""
    rows = [["Backend", "`cellerate train text`", "plain Keras `fit`", "bits per character after 1 epoch"]]
    for backend, found in result["backends"].items():
        ours, plain = found["cellerate"], [run["characters_per_s"] for run in found["keras_fit"]]
        rows.append(
            [
                backend,
                f"{ours['characters_per_s'] / 1e3:.1f} k characters/s",
                f"{min(plain) / 1e3:.1f} to {max(plain) / 1e3:.1f} k characters/s",
                f"{ours['bits_per_character']:.3f}",
            ]
        )
    return rows


def series(result: dict[str, Any]) -> list[list[str]]:
    """A row a forecaster, with its training time; the naive ones are the same on every backend."""
    rows = [["ETTh1, `OT`, 24 hours ahead, test part", "Epochs", "MAE", "MSE"]]
    for backend, report in result.items():
        options = report["options"]
        most = options[options.index("--epochs") + 1]
        epochs = f"{report['training']['epochs']} of at most {most}"
        rows.append([f"Cellerate, {backend}", epochs, *_errors(report["test"]["model"])])
    first = next(iter(result.values()))["test"]
    rows.append(["last value", "", *_errors(first["last_value"])])
    rows.append(["the day before", "", *_errors(first["seasonal_naive"])])
    return rows


def _errors(found: dict[str, float]) -> list[str]:
    return [f"{found['mae']:.3f} °C", f"{found['mse']:.3f}"]


def embed(result: dict[str, Any]) -> list[list[str]]:
    """The held-out lines."""
    held = result["held_out"]
    return [
        ["Held-out lines of tinyshakespeare", "Share"],
        ["characters right, all before them given", f"{held['token_accuracy']:.1%}"],
        ["characters right, written freely from the vector", f"{held['free_token_accuracy']:.1%}"],
        ["lines that come back whole", f"{held['exact_lines']:.1%}"],
    ]


def step(result: dict[str, Any]) -> list[list[str]]:
    """A row a contestant, a column a size."""
    races = {race[0]["units"]: [*race] for race in result["races"]}
    for one in [*result.get("stock_allocator", ()), *result.get("refused", ())]:
        races.setdefault(one["units"], []).append(one)
    columns = {f"H={units}": race for units, race in races.items()}
    return _contest(columns, lambda one: f", {one['policy'].removeprefix('mixed_')}", 0)


def _contest(
    columns: dict[str, list[dict[str, Any]]], more: Callable[[dict[str, Any]], str], digits: int
) -> list[list[str]]:
    """Thousand characters/s: a row for each contestant, a column for each race; or the reason why one cannot run."""
    cells: dict[str, dict[str, str]] = {}
    for column, race in columns.items():
        for one in race:
            label = _contestant(one, more(one))
            speed = one.get("refused") or f"{one['characters_per_s'] / 1e3:.{digits}f}"
            cells.setdefault(label, {})[column] = speed
    rows = [["Thousand characters/s", *columns]]
    return [
        *rows,
        *([label, *(found.get(column, "") for column in columns)] for label, found in cells.items()),
    ]


def _contestant(one: dict[str, Any], more: str = "") -> str:
    """A contestant of training with its settings; `more` follows its name."""
    names = {"keras": "Keras", "cellerate-cpu": "**Cellerate**", "torch.nn.LSTM": "torch.nn.LSTM loop"}
    loop = one["implementation"] == "torch.nn.LSTM"
    label = names[one["implementation"]] + ("" if loop else f" on {one['backend']}") + more
    if one.get("jit_compile") is True:
        label += ", `torch.compile`" if loop else ", `jit_compile=True`"
    label += ", `unroll=True`" if one.get("unroll") else ""
    return label + (", the allocator as it comes" if one.get("allocator") == "stock" else "")


def native(result: dict[str, Any]) -> list[list[str]]:
    """A row a size."""
    rows = [["T=100", "float32", "bfloat16"]]
    found = {(r["units"], r["batch"], r["inputs"], r["dtype"]): r["share_of_peak"] for r in result["sizes"]}
    for units, batch, inputs in dict.fromkeys(key[:3] for key in found):
        what = "D=H" if inputs == "dense" else "lookups, V=96"
        shares = [f"{found[units, batch, inputs, dtype]:.0%}" for dtype in ("float32", "bfloat16")]
        rows.append([f"H={units}, B={batch}, {what}", *shares])
    for one in result.get("onednn", {}).get("sizes", ()):
        if one["dtype"] == "float32":
            size = (one["units"], one["batch"])
            alone = {
                each["dtype"]: each
                for each in result["onednn"]["sizes"]
                if (each["units"], each["batch"]) == size
            }
            shares = [
                f"{alone[dtype]['share_of_peak']:.0%}" if dtype in alone else "wrong"
                for dtype in ("float32", "bfloat16")
            ]
            rows.append([f"oneDNN through torch, H={size[0]}, B={size[1]}, D=H", *shares])
    for name, reason in result.get("refused", {}).items():
        rows.append([name, reason, ""])
    peaks = result["peak_operations_per_s"]
    rows.append(
        [f"peak, {result['target']}", *[f"{peaks[d] / 1e9:.0f} GFLOP/s" for d in ("float32", "bfloat16")]]
    )
    return rows


def variants(result: dict[str, Any]) -> list[list[str]]:
    """A row a variant: the step time relative to the plain layer."""
    rows = [[f"Step on {result['backend']}, H={result['units']}", "Cellerate", "Keras"]]
    times = {(r["variant"], r["implementation"]): r["median_s"] for r in result["float32"]}
    for name in dict.fromkeys(variant for variant, _ in times):
        row = [name]
        for implementation in ("cellerate-cpu", "keras"):
            slower = times[name, implementation] / times["plain", implementation]
            row.append(f"{times[name, implementation] * 1e3:.0f} ms ({slower:.2f}x)")
        rows.append(row)
    return rows


def small(result: dict[str, Any]) -> list[list[str]]:
    """A row a contestant, a column a size of batch and layer."""
    columns = {f"B={race[0]['batch']}, H={race[0]['units']}": [*race] for race in result["races"]}
    for one in result.get("refused", ()):
        for column, race in columns.items():
            if column.endswith(f"H={one['units']}"):
                race.append(one)
    return _contest(columns, lambda one: "", 1)


def typical(result: dict[str, Any]) -> list[list[str]]:
    """A row a model and batch, a column a contestant: the step time, on a quiet and on a busy machine."""
    cells: dict[str, dict[str, str]] = {}
    columns = []
    for race in result["races"]:
        column = f"{race[0]['title']}, B={race[0]['batch']}"
        columns.append(column)
        for one in race:
            cell = f"{rounded(one['median_s'] * 1e3)} ({rounded(one['busy_median_s'] * 1e3)})"
            cells.setdefault(_contestant(one), {})[column] = cell
        best = max(
            one["operations"] / one["median_s"] for one in race if one["implementation"] == "cellerate-cpu"
        )
        share = percent(best / result["peak_operations_per_s"])
        cells.setdefault("share of the peak, the fastest of Cellerate's", {})[column] = share
    for one in result["refused"]:
        column = f"{one['title']}, B={one['batch']}"
        cells.setdefault(_contestant(one), {})[column] = one["refused"]
    head = ["A step in ms, idle (beside a busy process)", *cells]
    return [head, *([column, *(found.get(column, "") for found in cells.values())] for column in columns)]


def kept_by(result: dict[str, Any]) -> str:
    """The variables that limited every contestant to fewer instructions."""
    variables = ", ".join(f"`{name}={value}`" for name, value in result["environment"].items())
    return f"Everybody was kept to them by variables of the environment: {variables}."


def quality(result: dict[str, Any]) -> list[list[str]]:
    """A row a backend and number of steps: the loss after these steps."""
    rows = [["Loss, mean of 20 steps", "Keras, float32", "Cellerate, float32", "Cellerate, bfloat16"]]
    found: dict[tuple[str, int], dict[tuple[str, str], float]] = {}
    for one in result["losses"]:
        of = found.setdefault((one["backend"], one["steps"]), {})
        of[one["implementation"], one["policy"]] = one["mean_of_last_20"]
    ways = (("keras", "float32"), ("cellerate-cpu", "float32"), ("cellerate-cpu", "mixed_bfloat16"))
    for (backend, steps), of in found.items():
        rows.append([f"{backend}, to step {steps:,}", *[f"{of[way]:.4f}" for way in ways]])
    return rows


def generation(result: dict[str, Any]) -> list[list[str]]:
    """A row a contestant and job, a column a size."""
    sizes = result["sizes"]
    found: dict[str, list[str]] = {}
    for place, size in enumerate(sizes):
        for record in size["records"]:
            label = _generator(result, record["contestant"], record["job"])
            found.setdefault(label, [""] * len(sizes))[place] = _speed_or_latency(record)
        for name, about in size["contestants"].items():
            if "refused" in about:
                found.setdefault(RUNTIMES.get(name, name), [""] * len(sizes))[place] = about["refused"]
    rows = [["Characters/s", *[f"H={size['units']}" for size in sizes]]]
    rows += [[label, *speeds] for label, speeds in found.items()]
    for precision in sizes[0]["process_of_1000"]:
        times = [size["process_of_1000"][precision]["median_s"] for size in sizes]
        name = f"`cellerate generate` {precision}, 1000 characters, the whole process"
        rows.append([name, *[f"{seconds:.2f} s" for seconds in times]])
    return rows


_ONE_CALL = {
    "draw": "a character from Python, drawn by NumPy, median and p99",
    "logits": "a step from Python, median and p99",
    "sequence": "judging 1000 characters in a call, one after the other",
}
_OURS = _ONE_CALL | {
    "generate": "one stream",
    "loop": "one stream, 500 characters a call",
    "score": "judging a text",
    "step": "a step from Python, median and p99",
}
_KERAS_WAYS = (
    WAYS
    | _ONE_CALL
    | {
        "eager": "an eager step, the state given",
        "step": "a compiled step, the state given",
        "drawn": "a compiled step that draws, a call a character",
    }
)


def _generator(result: dict[str, Any], contestant: str, job: str) -> str:
    """The name of a row."""
    what, _, precision = job.partition(" ")
    if contestant == "cellerate":
        ours = _OURS | {"streams": f"{result['streams']} streams in all"}
        return f"**Cellerate** {precision}, {ours[what]}"
    if contestant in RUNTIMES and precision:
        ways = _ONE_CALL | {"loop": "its own loop, one stream"}
        return f"{RUNTIMES[contestant]} {precision}, {ways[what]}"
    if contestant == "onnxruntime":
        version = result["sizes"][0]["contestants"]["onnxruntime"].get("version")
        return f"ONNX Runtime {version}, its LSTM node alone, {job}"
    return f"Keras on {contestant}, {_KERAS_WAYS[what]}" + (f", {precision}" if precision else "")


def _speed_or_latency(record: dict[str, Any]) -> str:
    """Characters/s; for calls that return one result, the time of a call."""
    what = record["job"].split()[0]
    if what in ("draw", "logits") or (record["contestant"], what) == ("cellerate", "step"):
        return f"{record['median_s'] * 1e6:,.1f}, {record['p99_s'] * 1e6:,.1f} µs"
    return f"{record['characters_per_s']:,.0f}"


def packed(result: dict[str, Any]) -> list[list[str]]:
    """A row a precision; Keras judges windows, so its figure stands beside that of the same windows."""
    model, keras = result["model"], result["keras"]
    head = f"*War and Peace*, H={model['units']}, {result['epochs']} epochs"
    rows = [[head, "Size", "Bits per character of windows", "state carried", "more than float32"]]
    rows.append(
        ["`.keras`", f"{keras['bytes'] / 1e6:.1f} MB", f"{keras['windows_bits_per_character']:.4f}", "", ""]
    )
    for precision, found in result["packed"].items():
        windows = found.get("windows_bits_per_character")
        rows.append(
            [
                f"`.cell`, {precision}",
                f"{found['bytes'] / 1e6:.1f} MB",
                f"{windows:.4f}" if windows else "",
                f"{found['bits_per_character']:.4f}",
                f"{found['increase']:+.2%}" if found["goal"] else "",
            ]
        )
    return rows


def optimized(result: dict[str, Any]) -> list[list[str]]:
    """The verdict of each task, a row a figure, before and after; and the control on the test part."""
    rows = [["", "Before, Keras", "After", "times better"]]
    for run in result["runs"].values():
        verdict, original = run["verdict"], run["candidates"][0]
        about = f"**{run['model']}**, {original['parameters']:,} weights, {run['data']}"
        rows.append([about, original["precision"], verdict["chosen"], ""])
        for row in verdict["rows"]:
            times = "" if row["quantity"] is None else rounded(factor(row))
            values = [quantity(row[when], row["unit"]) for when in ("before", "after")]
            rows.append([row["label"], *values, times])
        for one in verdict.get("tested", ()):
            if one["role"] == "control":
                told = quantity(one["quality"]["value"], run["metric"]["unit"])
                rows.append(["the original, trained for as many further steps", "", told, ""])
    return rows


def compressed(result: dict[str, Any]) -> list[list[str]]:
    """A row a compression, then the controls; a column a task."""
    tasks = list(result)
    heads = {"text": "*War and Peace*", "series": "ETTh1", "lines": "lines of tinyshakespeare"}
    rows = [["Worse than the original by", *[f"{heads[task]}, H={result[task]['units']}" for task in tasks]]]
    found: dict[str, dict[str, str]] = {}
    for task in tasks:
        one = result[task]
        told = {"int8": [one["int8"]]}
        for pruned in sorted(one["pruned"], key=lambda each: each["steps"]):
            if pruned["importance"] == "both" and pruned["steps"]:
                told[f"half the units, {pruned['steps']} steps of training"] = [pruned]
        told |= {name: [control] for name, control in one["controls"].items()}
        told["a student of a quarter of the units, distilled, by seed"] = [
            each["student"] for each in one["distilled"]
        ]
        told["its twin, not distilled, by seed"] = [each["twin"] for each in one["distilled"]]
        for name, records in told.items():
            found.setdefault(name, {})[task] = ", ".join(f"{record['loss']:+.1%}" for record in records)
    rows += [[name, *[cells.get(task, "") for task in tasks]] for name, cells in found.items()]
    names = (f"{result[task]['metric']['name']} {result[task]['original']:.3f}" for task in tasks)
    rows.append(["the original itself", *names])
    return rows


def smaller(result: dict[str, Any]) -> list[list[str]]:
    """A row a model, a column a precision."""
    found, precisions = result["speed"], ("float32", "int8")
    rows = [["One stream, characters/s", "Weights", *precisions]]
    for name, parameters in found["parameters"].items():
        records = [found["records"][f"{name} {precision}"] for precision in precisions]
        speeds = [f"{one['characters_per_s']:,.0f} ({one['speedup']:.1f}x)" for one in records]
        rows.append([name, f"{parameters / 1e6:.2f} M", *speeds])
    return rows


def inference(result: dict[str, Any]) -> list[list[str]]:
    """A row a model and batch; for each precision our time, its share of the peak, and the fastest peer.

    After the share come the fastest peer's time, as a multiple of ours, and its name. The last row is for many streams,
    a step a call.
    """
    rows = [["Model", "Batch", *[f"{precision}, a call" for precision in PRECISIONS]]]
    for cell in result["cells"]:
        contest = inferring(cell)
        told = []
        for precision in PRECISIONS:
            (ours,) = contest.of("ours", precision)
            other = contest.opponent(ours)
            against = "" if other is None else f", {rounded(contest.ratio(ours, other))}x {other.who}"
            share = _share_of_peak(result, precision, cell["model"], cell["batch"], ours.value)
            told.append(f"{contest.told(ours.value)}{share}{against}")
        rows.append([cell["model"], str(cell["batch"]), *told])
    if streams := result.get("streams"):
        rates = [f"{short(streams['count'] / one['median_s'])} steps/s" for one in streams["records"]]
        rows.append([f"{streams['model']}, {streams['count']:,} streams", "1 step", *rates])
    return rows


def latency(result: dict[str, Any]) -> list[list[str]]:
    """A row a stack and precision: ours on a quiet and on a busy machine, the best peer, and the limit."""
    rows = [
        [
            "One step of one stream",
            "from Python, median, p99, p99.9",
            "beside a busy process",
            "the best other one, p99",
            "beside a busy process",
            "ours without Python",
            "reading the weights",
        ]
    ]
    for stack in result["stacks"]:
        by = {(one["contestant"], one["precision"]): one for one in stack["records"]}
        for precision in PRECISIONS:
            one, native = by["cellerate", precision], stack["native"][precision]
            others = []
            for when in ("quiet", "busy"):
                contest = stepping(stack, when)
                (ours,) = contest.of("ours", precision)
                other = contest.opponent(ours)
                if other is None:
                    others.append("")
                    continue
                name = next(key for key, words in RUNTIMES.items() if words == other.who)
                p99 = by[name, precision][when]["p99_s"]
                ratio = rounded(contest.ratio(ours, other))
                others.append(f"{other.who} {_in_us(other.value, p99)}: {ratio}x")
            told = [
                _in_us(*(one[when][each] for each in ("median_s", "p99_s", "p99.9_s")))
                for when in ("quiet", "busy")
            ]
            share = percent(native["reading_s"] / native["median_s"])
            rows.append(
                [
                    f"{stack['stack']}, {precision}",
                    *told,
                    *others,
                    microseconds(native["median_s"]),
                    f"{microseconds(native['reading_s'])} ({share})",
                ]
            )
    return rows


def published_steps(result: dict[str, Any]) -> str:
    """The figures that others published for the same stacks, not measured here."""
    published = result["published"]
    cards = [
        f"{card} " + "; ".join(f"{stack} {_in_us(*figures)}" for stack, figures in published[card].items())
        for card in ("IA-840F", "V80")
    ]
    return (
        f"Not measured here, but published by the maker of FPGA cards ({published['source']}), mean and 99th "
        f"percentile: {'. '.join(cards)}."
    )


def _in_us(*seconds: float) -> str:
    return (
        ", ".join(f"{1e6 * each:,.0f}" if each >= 1e-4 else f"{1e6 * each:.3g}" for each in seconds) + " µs"
    )


def _share_of_peak(result: dict[str, Any], precision: str, model: str, batch: int, seconds: float) -> str:
    """The rate of all necessary products; older records lack the peak."""
    if "products" not in result:
        return ""
    peak = result["peak_operations_per_s"][precision]
    return f" ({percent(2 * batch * result['products'][model] / seconds / peak)})"


TABLES: dict[str, Callable[[dict[str, Any]], list[list[str]]]] = {
    "step": step,
    "kernel": native,
    "variants": variants,
    "small": small,
    "typical": typical,
    "typical-avx2": typical,
    "loss": quality,
    "text": text,
    "generate": generation,
    "inference": inference,
    "latency": latency,
    "quality": packed,
    "optimize": optimized,
    "loader": loader,
    "series": series,
    "embed": embed,
    "compression": compressed,
    "smaller": smaller,
    "serving": served,
    "plan": planned,
    "stages": staged,
    "scale": scaled,
    "forecasting": forecasting_table.forecasting,
    "backtest": forecasting_table.backtest,
}
NOTES: dict[str, Callable[[dict[str, Any]], str]] = {
    "forecasting": forecasting_table.where_we_lose,
    "backtest": forecasting_table.equal_models,
    "latency": published_steps,
    "typical-avx2": kept_by,
}
"""The sentence below a table."""
