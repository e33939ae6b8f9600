"""The race: contestants take turns, so that a drift of the machine's speed affects all of them.

In each session every contestant of a case is a new process. Before anything is timed, its results are compared with
float64. A job that is wrong or cannot run is left out, and the record says why.
"""

from __future__ import annotations

import contextlib
import dataclasses
import datetime
import math
import tempfile
import time
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from cellerate.errors import BackendError
from cellerate.machine.environment import machine, package_version, versions
from cellerate.measure import as_timing
from cellerate.observe.bench import load
from cellerate.observe.bench.cases import BenchPlan, Contestant, contestants, least_operations
from cellerate.observe.bench.contestant import PROTOCOL, YARDSTICK, key_of
from cellerate.observe.bench.process import Process, command_of
from cellerate.observe.bench.record import SCHEMA, Entry, LeftOut, Load, Record, Turn, summarised

Command = Callable[[Contestant, Mapping[str, Any]], Sequence[str]]
"""A contestant and its description as JSON → the command of its process."""
_PACKAGES = ("onnx", "onnxruntime", "openvino", "ai-edge-litert")
# For calls of about 0.3 ms.
_YARDS = {"number": 0, "way": YARDSTICK, "samples": 12, "each": 1}
_LEAST_SAMPLE_S, _MOST_SAMPLES, _LEAST_SAMPLES = 1e-3, 50, 3
_ANSWER_LIMIT_S = 120.0
_REASON = 500  # characters


class Race:
    """A run of all cases.

    Args:
        plan: The cases to run, and their times.
        say: Called with a sentence on the progress.
        table: The contestants of each case.
        command: Returns the command of a contestant.
    """

    def __init__(
        self,
        plan: BenchPlan,
        say: Callable[[str], None] = lambda _: None,
        *,
        table: Mapping[str, Sequence[Contestant]] | None = None,
        command: Command = command_of,
    ) -> None:
        self.plan, self._say, self._command = plan, say, command
        self._table = table or {case: contestants(case, plan.backends, plan.against) for case in plan.cases}
        self._folders: dict[str, str] = {}
        self._peaks: dict[str, float] = {}
        self._versions: dict[str, dict[str, str]] = {"": versions()}
        self._jobs: dict[tuple[str, Contestant, str], _Timed] = {}
        self._left_out: list[tuple[str, LeftOut]] = []
        self._gone: set[tuple[str, Contestant]] = set()

    def run(self, command: str = "") -> list[Record]:
        """Runs everything.

        Args:
            command: The command that repeats the run, for the record.

        Returns:
            The record; if another version took part, a second record with that version in place of ours.

        Raises:
            BackendError: The model could not be made.
        """
        started, begin = datetime.datetime.now(datetime.UTC), time.monotonic()
        before, watched, sessions = load.idle(), load.times(), 0
        with tempfile.TemporaryDirectory(prefix="cellerate-bench-") as folder:
            self._build(Path(folder))
            while sessions < self.plan.sessions and self._fits(begin, sessions):
                for case in self.plan.cases:
                    self._case(case, sessions)
                sessions += 1
        others = {name: found for name in _PACKAGES if (found := package_version(name)) is not None}
        record = Record(
            schema=SCHEMA,
            run=uuid.uuid4().hex,
            started=started.isoformat(timespec="seconds"),
            seconds=time.monotonic() - begin,
            command=command,
            quick=self.plan.quick,
            machine=machine(),
            versions=self._versions[""] | others,
            sizes=dataclasses.asdict(self.plan.sizes),
            sessions=sessions,
            rounds=self.plan.rounds,
            load=Load(before, *load.shares(watched, load.times())),
            peaks=self._peaks,
            entries=tuple(self._entries("")),
            left_out=self._without(""),
        )
        if not self.plan.against:
            return [record]
        there = dataclasses.replace(
            record,
            versions=self._versions.get(self.plan.against, {}) | others,
            entries=tuple(self._entries(self.plan.against)),
            left_out=self._without(self.plan.against),
        )
        return [record, there]

    def _fits(self, begin: float, sessions: int) -> bool:
        """True if another session as long as those before would end in time."""
        passed = time.monotonic() - begin
        return not sessions or passed * (1 + 1 / sessions) <= self.plan.budget_s

    def _build(self, folder: Path) -> None:
        self._say("making the model, and what float64 says of it")
        # Each version reads only its own files.
        for place, python in enumerate(dict.fromkeys(["", self.plan.against])):
            self._folders[python] = str(folder / str(place))
            Path(self._folders[python]).mkdir()
            builder = Process(
                self._command(Contestant("build", "", python=python), self._told("build", python))
            )
            with contextlib.closing(builder):
                found = builder.answer(self.plan.limit_s)
            self._peaks = self._peaks or found["peaks"]

    def _told(self, case: str, python: str) -> dict[str, Any]:
        sizes = dataclasses.asdict(self.plan.sizes)
        return {"case": case, "folder": self._folders[python], "sizes": sizes}

    def _case(self, case: str, session: int) -> None:
        """One session of a case."""
        with contextlib.ExitStack() as stack:
            racing = list(self._start(case, session, stack))
            if not racing:
                return
            yardstick = self._open(case, Contestant(YARDSTICK, ""), stack)
            yardstick.answer(self.plan.limit_s)
            self._say(f"session {session + 1}, {case}: {', '.join(one.title for one, _, _ in racing)}")
            if session == 0:
                for one, process, jobs in racing:
                    self._try(case, one, process, jobs)
            for turn in range(self.plan.rounds):
                # The order is reversed from round to round, and with an odd number of rounds each session begins
                # at the other end.
                for one, process, jobs in racing if (session + turn) % 2 == 0 else reversed(racing):
                    if (case, one) not in self._gone:
                        self._turn(case, one, process, jobs, yardstick, session, turn)

    def _start(
        self, case: str, session: int, stack: contextlib.ExitStack
    ) -> Iterator[tuple[Contestant, Process, list[_Timed]]]:
        """Start all contestants that can run, two at a time: starting takes longer than timing."""
        waiting: list[tuple[Contestant, Process]] = []
        for one in self._table[case]:
            if (case, one) in self._gone:
                continue
            if one.missing:
                self._leave_out(case, one, one.missing)
                continue
            waiting.append((one, self._open(case, one, stack)))
            if len(waiting) == 2:
                yield from self._ready(case, session, *waiting.pop(0))
        for each in waiting:
            yield from self._ready(case, session, *each)

    def _open(self, case: str, one: Contestant, stack: contextlib.ExitStack) -> Process:
        process = Process(self._command(one, self._told(case, one.python)))
        stack.callback(process.close)
        return process

    def _ready(
        self, case: str, session: int, one: Contestant, process: Process
    ) -> Iterator[tuple[Contestant, Process, list[_Timed]]]:
        """The contestant with its right jobs; nothing if it cannot take part."""
        try:
            found = process.answer(self.plan.limit_s)
        except BackendError as error:
            self._leave_out(case, one, str(error))
            return
        if found["protocol"] != PROTOCOL:
            self._leave_out(case, one, "its version of Cellerate measures in another way")
            return
        if found["allocator"] == "stock":
            self._leave_out(
                case, one, "its C library does not take the allocator setting that all others have"
            )
            return
        self._versions.setdefault(one.python, found["versions"])
        jobs = [job for about in found["jobs"] if (job := self._job(case, one, about, session))]
        if jobs:
            yield one, process, jobs

    def _job(self, case: str, one: Contestant, about: dict[str, Any], session: int) -> _Timed | None:
        """The prepared job to time; None if it is wrong, or was wrong in an earlier session."""
        key = (case, one, key_of(about["work"], about["precision"], about["call"]))
        wrong = "refused" not in about and not about["error"] <= about["bound"]
        if wrong or "refused" in about:
            reason = (
                f"off by {about['error']:.1e}; {about['bound']:.1e} is allowed" if wrong else about["refused"]
            )
            if session == 0 or key in self._jobs:
                # A job that was right before and is wrong now is not reliable.
                self._jobs.pop(key, None)
                self._note(case, one, f"{about['work']}, {about['precision']}", reason, wrong=wrong)
            return None
        if session == 0:
            self._jobs[key] = _Timed({}, [])
        found = self._jobs.get(key)
        if found is not None:
            found.about.update(about)
        return found

    def _try(self, case: str, one: Contestant, process: Process, jobs: Sequence[_Timed]) -> None:
        """Find the fastest way of each job and its time for a call, while no other contestant runs."""
        time.sleep(self.plan.between_s)
        for job in jobs:
            try:
                ways = process.ask({"number": job.about["number"]}, self.plan.limit_s)
            except BackendError as error:
                self._leave_out(case, one, f"it ended while it was tried: {error}")
                return
            best = min(ways, key=ways.__getitem__)
            job.about.update(way=best, about_s=ways[best])

    def _turn(
        self,
        case: str,
        one: Contestant,
        process: Process,
        jobs: Sequence[_Timed],
        yardstick: Process,
        session: int,
        turn: int,
    ) -> None:
        time.sleep(self.plan.between_s)
        for job in jobs:
            turns, turn_s = self.plan.turns if one.ours else 1, self.plan.turn_s
            if one.ours and job.about["anew"]:
                turns, turn_s = self.plan.short_turns, turn_s / 2
            samples, each = job.calls(turn_s)
            asked = {"number": job.about["number"], "way": job.about["way"], "samples": samples, "each": each}
            for _ in range(turns):
                try:
                    beside = yardstick.ask(_YARDS, _ANSWER_LIMIT_S)
                    seconds = process.ask(asked, _ANSWER_LIMIT_S)
                except BackendError as error:
                    self._leave_out(case, one, f"it ended while it was timed: {error}")
                    return
                # The fast calls of the yardstick: a neighbour's burst is not the machine's speed.
                fast_s = as_timing(beside).percentile_s(0.2)
                job.turns.append(Turn(session, turn, fast_s, tuple(seconds)))

    def _leave_out(self, case: str, one: Contestant, reason: str) -> None:
        self._gone.add((case, one))
        for key in [key for key in self._jobs if key[:2] == (case, one)]:
            del self._jobs[key]
        self._note(case, one, "", reason)
        self._say(f"{case}: {one.title} takes no part: {reason}")

    def _note(self, case: str, one: Contestant, what: str, reason: str, *, wrong: bool = False) -> None:
        self._left_out.append((one.python, LeftOut(case, one.title, one.ours, what, wrong, reason[:_REASON])))

    def _without(self, python: str) -> tuple[LeftOut, ...]:
        """The jobs left out of a version's record; peers are in both records."""
        return tuple(left for where, left in self._left_out if where == python or not left.ours)

    def _entries(self, python: str) -> Iterator[Entry]:
        """The timed jobs of a version's record; peers are in both records."""
        for (case, one, _), job in self._jobs.items():
            if not job.turns or (one.ours and one.python != python):
                continue
            median_s, p20_s, p80_s = summarised(tuple(job.turns))
            about, peak = job.about, self._peaks.get(job.about["precision"])
            operations = least_operations(case, self.plan.sizes) * about["items"]
            share = None if peak is None else operations / median_s / peak
            yield Entry(
                case=case,
                contestant=one.name,
                title=one.title,
                ours=one.ours,
                **{
                    key: about[key] for key in ("work", "precision", "call", "way", "items", "error", "bound")
                },
                median_s=median_s,
                p20_s=p20_s,
                p80_s=p80_s,
                # A share above 1 means that the peak was measured while something else ran.
                peak_share=share if share is not None and share <= 1 else None,
                turns=tuple(job.turns),
            )


@dataclasses.dataclass(frozen=True)
class _Timed:
    """A contestant's job, over all sessions.

    Attributes:
        about: The description by its process, with the "way" to take and "about_s", the seconds of a call.
        turns: Its turns so far.
    """

    about: dict[str, Any]
    turns: list[Turn]

    def calls(self, turn_s: float) -> tuple[int, int]:
        """The number of samples of a turn, and the number of calls of each sample."""
        each = max(1, math.ceil(_LEAST_SAMPLE_S / self.about["about_s"]))
        samples = round(turn_s / (each * self.about["about_s"]))
        return max(_LEAST_SAMPLES, min(_MOST_SAMPLES, samples)), each
