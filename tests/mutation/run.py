"""Measures how many small faults the tests notice: `make mutation`.

Cosmic Ray makes the mutants; the rest of it is not used. It would mutate the working tree and run one command for all,
and after Ctrl-C a test would go on. Here a seeded sample of mutants is drawn for each room, as all of them would take
days, and each is put into a copy of the tree and meets the tests of its room, those of its own module first. The score
goes to score.json, with every survivor; reasons.json says of survivors why no test could notice them.
"""

import argparse
import ast
import contextlib
import datetime
import difflib
import importlib.util
import json
import math
import os
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

from cosmic_ray.ast import ast_nodes, get_ast
from cosmic_ray.mutating import mutate_code
from cosmic_ray.plugins import get_operator, operator_names

_NO_TESTS = 5  # pytest's exit code where none is left to run
HERE = Path(__file__).parent
ROOT = HERE.parents[1]
PACKAGE = Path("src/cellerate")
SEED, NUMBER, MINUTES = 1, 20, 60
# Of the time that the tests of a room take without a fault, and in seconds: what a mutant may take.
PATIENCE, LEAST_PATIENCE = 3, 60


class Room(NamedTuple):
    """What is mutated, as globs in the package, and the tests that have to notice."""

    sources: tuple[str, ...]
    tests: tuple[str, ...]


ROOMS = {
    "data": Room(("data/**/*.py",), ("tests/data",)),
    "sampling": Room(
        ("runtime/text/sampling.py", "runtime/text/beam.py", "kernels/decoder/sampling.py"),
        (
            "tests/runtime/text/test_sampling.py",
            "tests/runtime/text/test_beam.py",
            "tests/kernels/decoder/test_cpu.py",
            "tests/kernels/decoder/test_generate.py",
            "tests/kernels/decoder/test_sampling.py",
        ),
    ),
    "checkpoint": Room(
        ("files.py", "training/checkpoint*.py"),
        (
            "tests/test_files.py",
            "tests/training/test_checkpoint.py",
            "tests/training/test_checkpoint_folder.py",
            "tests/training/test_loop.py",
            "tests/training/test_resume.py",
        ),
    ),
    "training": Room(
        ("training/[!c]*.py", "training/c[!h]*.py", "training/*/*.py"),
        ("tests/training", "tests/tasks/test_train.py"),
    ),
    "steps": Room(("layers/engine/*.py",), ("tests/layers/engine",)),
    "programs": Room(("program/**/*.py", "runtime/program/*.py"), ("tests/program", "tests/runtime/program")),
    "serving": Room(("serving/**/*.py",), ("tests/serving",)),
    "compress": Room(("compress/**/*.py",), ("tests/compress",)),
    "optimization": Room(("optimization/**/*.py",), ("tests/optimization",)),
}
# The tests of modules whose names do not say so.
MIRRORS = {
    "kernels/decoder/sampling.py": "tests/runtime/text/test_sampling.py",
    "training/parallel.py": "tests/distributed/test_joint_training.py",
    "training/probe.py": "tests/distributed/test_joint_training.py",
}


class Mutant(NamedTuple):
    """One fault: a file of the package, its line from 1, Cosmic Ray's operator and which of its places, from 0."""

    file: str
    line: int
    operator: str
    occurrence: int


def places(file: str, source: str) -> list[list[Mutant]]:
    """The mutants of a module, those at one place together; what only a type checker reads is left out."""
    skipped = list(_annotations(source))
    found: dict[Any, list[Mutant]] = {}
    nodes = list(ast_nodes(get_ast(source)))
    for name in sorted(operator_names()):
        operator = get_operator(name)
        if operator.arguments():
            continue
        positions = (where for node in nodes for where in operator().mutation_positions(node))
        for occurrence, (start, end) in enumerate(positions):
            if not any(first <= start < last for first, last in skipped):
                found.setdefault((start, end), []).append(Mutant(file, start[0], name, occurrence))
    return [found[where] for where in sorted(found)]


def _annotations(source: str) -> Iterator[tuple[tuple[int, int], tuple[int, int]]]:
    for node in ast.walk(ast.parse(source)):
        for part in (getattr(node, "annotation", None), getattr(node, "returns", None)):
            if isinstance(part, ast.expr):
                end = part.end_lineno or part.lineno, part.end_col_offset or 0
                yield (part.lineno, part.col_offset), end


def drawn(room: Room, tree: Path, number: int, seed: int) -> tuple[list[Mutant], int]:
    """A sample of the room's mutants, one at each place that is drawn, and how many places there are."""
    files = sorted({path for pattern in room.sources for path in (tree / PACKAGE).glob(pattern)})
    every = [
        place
        for path in files
        for place in places(str(path.relative_to(tree / PACKAGE)), path.read_text(encoding="utf-8"))
    ]
    chance = random.Random(seed)
    return [chance.choice(place) for place in chance.sample(every, min(number, len(every)))], len(every)


@contextlib.contextmanager
def copy_of_the_tree() -> Iterator[Path]:
    """A folder with the tracked files as they are now, and the compiled core; it is gone afterwards."""
    listed = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, check=True, capture_output=True, text=True)
    core = importlib.util.find_spec("cellerate.kernels._core")
    assert core is not None and core.origin is not None
    with tempfile.TemporaryDirectory(prefix="mutation-") as folder:
        tree = Path(folder, "tree")
        for name in filter(None, listed.stdout.split("\0")):
            if (ROOT / name).is_file():
                (tree / name).parent.mkdir(parents=True, exist_ok=True)
                shutil.copy2(ROOT / name, tree / name)
        shutil.copy2(core.origin, tree / PACKAGE / "kernels")
        # The editable install finds the package in the working tree, in every process of the tests.
        (tree / "src" / "sitecustomize.py").write_text(
            "import sys\nsys.meta_path[:] = [f for f in sys.meta_path if 'ScikitBuild' not in type(f).__name__]\n"
        )
        yield tree


def run_tests(tree: Path, tests: list[str], limit_s: float) -> str:
    """Runs tests of a copy to the first failure and tells what came: "passed", "failed", "broken" or "timeout"."""
    environment = os.environ | {
        "PYTHONPATH": str(tree / "src"),
        "PYTHONDONTWRITEBYTECODE": "1",
        "KERAS_BACKEND": "torch",
        # What tests leave behind goes with the copy.
        "TMPDIR": str(tree.parent),
    }
    command = [sys.executable, "-m", "pytest", "-x", "-q", "-p", "no:cacheprovider", "-m", "not slow", *tests]
    process = subprocess.Popen(
        command,
        cwd=tree,
        env=environment,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
    )
    try:
        code = process.wait(limit_s)
    except subprocess.TimeoutExpired:
        return "timeout"
    finally:
        # And whatever the tests have started.
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()
    return {0: "passed", _NO_TESTS: "passed", 1: "failed"}.get(code, "broken")


def ended(room: Room, file: str, tree: Path, limit_s: float) -> str:
    """How a fault in a file of the package ends: as in `run_tests`.

    The module's own tests go first, in a process of their own: most faults end there, and many of these tests do
    without Keras, whose import takes longer.
    """
    path = Path(file)
    own = MIRRORS.get(file, str(Path("tests") / path.parent / f"test_{path.name}"))
    end = run_tests(tree, [own], limit_s) if (tree / own).exists() else "passed"
    return run_tests(tree, list(room.tests), limit_s) if end == "passed" else end


def changed(before: str, after: str) -> list[str]:
    """The lines that a mutant takes out and puts in."""
    lines = difflib.unified_diff(before.splitlines(), after.splitlines(), n=0, lineterm="")
    return [line for line in lines if line[0] in "+-" and line[:3] not in ("+++", "---")]


def measured(name: str, tree: Path, number: int, seed: int, most_s: float) -> dict[str, Any]:
    """The result of one room; once it has taken `most_s` seconds no further mutant begins."""
    room, begin = ROOMS[name], time.monotonic()
    if run_tests(tree, list(room.tests), 3600) != "passed":
        raise SystemExit(f"{name}: its tests do not pass without a fault: run {' '.join(room.tests)}")
    whole_s = time.monotonic() - begin
    limit_s = max(LEAST_PATIENCE, PATIENCE * whole_s)
    mutants, count = drawn(room, tree, number, seed)
    ends, survivors, done = dict.fromkeys(("failed", "broken", "timeout"), 0), [], 0
    for mutant in mutants:
        if time.monotonic() - begin > most_s:
            break
        path = tree / PACKAGE / mutant.file
        before = path.read_text(encoding="utf-8")
        try:
            after = mutate_code(before, get_operator(mutant.operator)(), mutant.occurrence)
        except AttributeError:
            continue  # Cosmic Ray cannot replace an exception whose name has a dot
        done += 1
        path.write_text(after, encoding="utf-8")
        try:
            end = ended(room, mutant.file, tree, limit_s)
        finally:
            path.write_text(before, encoding="utf-8")
        where = f"{PACKAGE / mutant.file}:{mutant.line}"
        print(f"{name} {done}/{len(mutants)} {where} {mutant.operator}: {end}", flush=True)
        if end == "passed":
            survivors.append({"place": where, "operator": mutant.operator, "diff": changed(before, after)})
        else:
            ends[end] += 1
    return {
        "places": count,
        "mutants": done,
        "ended_by": ends,
        "tests_s": round(whole_s, 1),
        "seconds": round(time.monotonic() - begin, 1),
        "survivors": survivors,
    }


def wilson(killed: int, count: int) -> tuple[float, float]:
    """The 95 % interval of a share. Source: Wilson (1927), doi.org/10.1080/01621459.1927.10502953."""
    z = 1.959964
    middle = (killed + z * z / 2) / (count + z * z)
    half = z / (count + z * z) * math.sqrt(killed * (count - killed) / count + z * z / 4)
    return middle - half, middle + half


def explained(survivors: list[dict[str, Any]]) -> None:
    """Adds to each survivor why no test could notice it, where reasons.json says so of just this change."""
    for survivor in survivors:
        file = survivor["place"].partition(":")[0]
        for known in json.loads((HERE / "reasons.json").read_text(encoding="utf-8")):
            if (known["file"], known["diff"]) == (file, survivor["diff"]):
                survivor["equivalent"] = known["reason"]


def score(rooms: dict[str, dict[str, Any]]) -> dict[str, Any]:
    """The share of mutants that were noticed, of all and of those that a test could notice."""
    every = [survivor for room in rooms.values() for survivor in room["survivors"]]
    count = sum(room["mutants"] for room in rooms.values())
    if count == 0:
        raise SystemExit("there was time for no mutant: give more with --minutes")
    killed, equivalent = count - len(every), sum("equivalent" in survivor for survivor in every)
    found: dict[str, Any] = {"mutants": count, "killed": killed, "equivalent": equivalent}
    for name, among in (("score", count), ("score_without_equivalent", count - equivalent)):
        found[name] = round(killed / among, 4)
        found[f"{name}_95"] = [round(end, 4) for end in wilson(killed, among)]
    return found


def main() -> None:
    """Reads the command line, measures the rooms and writes the record."""
    parser = argparse.ArgumentParser(description="The share of small faults that the tests notice.")
    parser.add_argument("rooms", nargs="*", metavar="ROOM", help=f"of {', '.join(ROOMS)}; all of them")
    parser.add_argument("--seed", type=int, default=SEED, help=f"of the sample ({SEED})")
    parser.add_argument("--number", type=int, default=NUMBER, help=f"of mutants in each room ({NUMBER})")
    parser.add_argument("--minutes", type=float, default=MINUTES, help=f"that all may take ({MINUTES})")
    parser.add_argument("--out", type=Path, default=HERE / "score.json", help="the record")
    given = parser.parse_args()
    if unknown := set(given.rooms) - set(ROOMS):
        parser.error(f"no room is called {', '.join(sorted(unknown))}: choose from {', '.join(ROOMS)}")
    if given.number < 1:
        parser.error(f"--number is how many mutants each room gets: from 1, not {given.number}")
    git = ["git", "describe", "--always", "--abbrev=40", "--dirty"]
    commit = subprocess.run(git, cwd=ROOT, check=True, capture_output=True, text=True).stdout.strip()
    begin, names = time.monotonic(), given.rooms or list(ROOMS)
    # Rooms that are not measured now keep what they have.
    rooms = json.loads(given.out.read_text(encoding="utf-8"))["rooms"] if given.out.exists() else {}
    with copy_of_the_tree() as tree:
        for done, name in enumerate(names):
            # What is left, in equal parts.
            part_s = (begin + 60 * given.minutes - time.monotonic()) / (len(names) - done)
            found = measured(name, tree, given.number, given.seed, part_s)
            explained(found["survivors"])
            when = datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds")
            rooms[name] = {"date": when, "commit": commit, "seed": given.seed, **found}
            # After each room, so that a run that is stopped has told what it found.
            record = {**score(rooms), "rooms": rooms}
            given.out.write_text(json.dumps(record, indent=1) + "\n", encoding="utf-8")
    low, high = record["score_95"]
    print(
        f"{record['killed']} of {record['mutants']} noticed: {record['score']:.0%} ({low:.0%} to {high:.0%})"
    )


if __name__ == "__main__":
    # A stop by the system ends as Ctrl-C does: the copy goes, and the tests with it. Python lets Ctrl-C alone where it
    # was started in the background.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    with contextlib.suppress(KeyboardInterrupt):
        main()
        sys.exit()
    sys.exit(130)
