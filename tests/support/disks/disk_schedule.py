"""A program that runs each verb of the command line again and again while the disk fails at a different change.

    python disk_schedule.py FOLDER SEED MOST VERB...

Each run must end with code 0, or with one clear error and code 6. It must leave older files unchanged or replace them
whole, leave nothing unfinished, and the same command must give the right result once the disk takes changes again.
The program prints one line of JSON: the runs and the failures of each verb, and the faults that it found.
"""

import contextlib
import errno
import io
import json
import os
import random
import shutil
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from support.disks.failing_files import NEVER, FailingFiles
from support.runs.small_runs import SMALL, write_inputs

_OLDER = b"older"
# How the disk fails: the error number, and whether it goes on failing.
FAULTS = {
    "full": (errno.ENOSPC, True),
    "one error": (errno.EIO, False),
    "read-only": (errno.EROFS, True),
}


class Verb(NamedTuple):
    """A command.

    Attributes:
        words: The command line; `{out}` stands for its output.
        output: The name of the output.
        replaces: An older file of that name may exist before.
        exact: The output has the same bytes each time.
        resumes: The output is a folder that the next run goes on with, and may be left behind.
        most: The most changes at which the disk fails in turn.
    """

    words: str
    output: str
    replaces: bool = True
    exact: bool = True
    resumes: bool = False
    most: int = NEVER


_TRAINING = "--seed 3 --checkpoint-every-s 0.001 --overwrite"


def _training(task: str, data: str) -> Verb:
    return Verb(f"train {task} {data} -o {{out}} {SMALL[task]} {_TRAINING}", "new.keras", exact=False, most=6)


VERBS = {
    "pack data": Verb("data pack s.csv -o {out}", "s2.series", replaces=False),
    "train text": _training("text", "t.txt"),
    "train series": _training("series", "s.csv"),
    "train embed": _training("embed", "l.txt"),
    "pack": Verb("pack text.keras -o {out} --precision int8", "new.cell"),
    "export onnx": Verb("export series.keras -o {out} --to onnx", "new.onnx"),
    "export litert": Verb("export series.keras -o {out} --to litert", "new.tflite"),
    "forecast csv": Verb("forecast series.cell s.csv -o {out}", "new.csv"),
    "forecast parquet": Verb("forecast series.cell s.csv -o {out}", "new.parquet"),
    "forecast plot": Verb("forecast series.cell s.csv --plot {out}", "new.png", exact=False),
    "backtest": Verb("backtest series.cell s.csv --folds 3 -o {out}", "new.csv"),
    "detect": Verb("detect series.cell s.csv -o {out}", "new.csv"),
    "embed": Verb("embed lines.keras l.txt -o {out}", "new.npy"),
    "evaluate": Verb(
        "evaluate series.cell s.csv -o {out}", "errors", replaces=False, exact=False, resumes=True
    ),
    "profile": Verb("profile text.keras --data t.txt -o {out}", "new.html", exact=False, most=6),
    "optimize": Verb(
        "optimize text.keras --data t.txt -o {out} --time-budget 5",
        "run",
        replaces=False,
        exact=False,
        resumes=True,
        most=3,
    ),
    "report": Verb("report earlier -o {out}", "again", replaces=False, exact=False, resumes=True),
}


def run(words: Sequence[str]) -> tuple[int, str]:
    """Run a command in this process; return its exit code and its stderr."""
    from cellerate.cli import main

    sys.argv = ["cellerate", *words]
    shown = io.StringIO()
    code: int = 0
    with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(shown):
        try:
            main.main()
        except SystemExit as ended:
            code = ended.code if isinstance(ended.code, int) else int(ended.code is not None)
    return code, shown.getvalue()


class Schedule:
    """The runs of one verb."""

    def __init__(self, disk: FailingFiles, inputs: Path, folder: Path, verb: Verb) -> None:
        self._disk, self._inputs, self._folder, self._verb = disk, inputs, folder, verb
        self._words = verb.words.replace("{out}", verb.output).split()
        self.runs = self.failures = self.ended_well = 0
        self.wrong: list[str] = []

    def begin(self) -> None:
        """Make a new folder with the inputs, an older output, and no cache."""
        os.chdir("/")
        shutil.rmtree(self._folder, ignore_errors=True)
        self._folder.mkdir()
        shutil.copytree(self._inputs, self._folder, dirs_exist_ok=True)
        if self._verb.replaces:
            (self._folder / self._verb.output).write_bytes(_OLDER)
        os.chdir(self._folder)

    def all(self, draw: random.Random, most: int) -> None:
        """Let each change fail in turn, or `most` of them."""
        # The first run in a process makes files that later runs find.
        for _ in range(2):
            self.begin()
            self._disk.fail(0, NEVER)
            code, said = run(self._words)
            if code:
                self.wrong.append(f"without a fault: code {code}: {said}")
                return
        changes, right = self._disk.count, self._content()
        most = min(most, self._verb.most)
        for name, (error, persists) in FAULTS.items():
            tried = range(changes)
            for first in sorted(draw.sample(tried, most)) if most < changes else tried:
                about = f"{name} from change {first} of {changes}"
                self._once(about, error, first, persists, right, last=first == changes - 1)

    def _once(
        self, name: str, error: int, first: int, persists: bool, right: dict[str, bytes], *, last: bool
    ) -> None:
        self.begin()
        before = self._names()
        self._disk.fail(error, first, NEVER if persists else first)
        code, said = run(self._words)
        failed = self._disk.failed
        self._disk.heal()
        self.runs += 1
        self.failures += failed
        self.ended_well += code == 0 and failed > 0
        for fault in self._faults(code, said, right, last=last):
            self.wrong.append(f"{name}: {fault}")
        # A read-only disk keeps unfinished files; files that let a killed process resume may stay.
        left = self._names() - before - {self._verb.output}
        left = {one for one in left if not one.endswith((".building", ".run"))}
        if left and error != errno.EROFS:
            self.wrong.append(f"{name}: left behind: {sorted(left)}")
        code, said = run(self._words)
        if code:
            self.wrong.append(f"{name}: with a disk that takes changes again: code {code}: {said}")
        elif self._verb.exact and self._content() != right:
            found = self._content()
            other = [each for each in right if found.get(each) != right[each]]
            self.wrong.append(f"{name}: the result afterwards is another one ({other} of {sorted(found)})")

    def _faults(self, code: int, said: str, right: dict[str, bytes], *, last: bool) -> list[str]:
        """The faults of a run; `last` says that its last change failed."""
        found = []
        errors = [line for line in said.splitlines() if line.startswith("error:")]
        if "Traceback" in said or code not in (0, 6) or len(errors) != (code == 6):
            found.append(f"code {code}: {said}")
        content = self._content()
        if code == 0:
            # The candidates that a run of `optimize` tries depend on the time.
            names = {name for name in right if "/" not in name} if self._verb.resumes else right.keys()
            if names - content.keys() or (self._verb.exact and content != right):
                found.append(f"code 0, and the output is not what it should be ({sorted(content)}): {said}")
        elif not self._is_kept(content, right, last=last):
            found.append(
                f"code {code}, and {self._verb.output} is not as it was ({sorted(content)}): {errors}"
            )
        return found

    def _is_kept(self, content: dict[str, bytes], right: dict[str, bytes], *, last: bool) -> bool:
        """True if a failed run may leave this output."""
        if self._verb.resumes or content == ({self._verb.output: _OLDER} if self._verb.replaces else {}):
            return True
        # If only flushing the folder's entry failed, the whole new output exists.
        if content == right or (last and not self._verb.exact and content.keys() == right.keys()):
            return True
        # A training keeps its best epoch so far.
        return self._verb.output.endswith(".keras") and run(["info", self._verb.output])[0] == 0

    def _names(self) -> set[str]:
        return {path.name for path in self._folder.iterdir()} - {"cache"}

    def _content(self) -> dict[str, bytes]:
        """The files of the output."""
        output = self._folder / self._verb.output
        if output.is_dir():
            files = (path for path in output.rglob("*") if path.is_file())
            return {str(path.relative_to(output)): path.read_bytes() for path in files}
        return {output.name: output.read_bytes()} if output.exists() else {}


def make_models() -> None:
    """Make the models that the verbs read, in the current folder."""
    for task, output in (("text", "text.keras"), ("series", "series.keras"), ("embed", "lines.keras")):
        _made(VERBS[f"train {task}"].words.replace("{out}", output))
    _made("pack series.keras -o series.cell")
    for path in Path().glob("*.run"):
        shutil.rmtree(path)
    _made("optimize text.keras --data t.txt -o earlier --time-budget 5")


def _made(words: str) -> None:
    code, said = run(words.split())
    if code:
        raise RuntimeError(f"{words}: {said}")


def main(folder: Path, seed: int, most: int, verbs: Sequence[str]) -> None:
    """Run the verbs and print the runs, failures and faults."""
    inputs, work = folder / "inputs", folder / "work"
    inputs.mkdir()
    write_inputs(inputs)
    os.environ["CELLERATE_CACHE"] = str(work / "cache")
    disk = FailingFiles(Path(os.environ["FAILING_FILES"]))
    work.mkdir()
    disk.watch(work)
    os.chdir(inputs)
    if list(verbs) != ["pack data"]:
        make_models()
    found = {}
    for name in verbs or VERBS:
        schedule = Schedule(disk, inputs, work, VERBS[name])
        schedule.all(random.Random(f"{seed} {name}"), most)
        found[name] = {
            "runs": schedule.runs,
            "failures": schedule.failures,
            "ended well": schedule.ended_well,
            "wrong": schedule.wrong,
        }
    print(json.dumps(found))


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3]), sys.argv[4:])
