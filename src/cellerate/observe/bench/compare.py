"""Compares two runs of `bench` on one machine: which jobs became slower beyond doubt, and by how much.

Two runs of the same code differ. The machine may be slower an hour later; a new process may be a few percent faster for
its whole life; and a neighbour's work makes single turns slower, never faster. So only the fast calls of each turn
count, as a ratio to the yardstick beside them; only the fast turns of each session; and the mean of all sessions
without the fastest and the slowest. The interval comes from the spread of the sessions: 1 % on some machines, 10 % on
others, above all virtual ones. Two records of one run have their turns side by side: there each turn's ratio of the
two records replaces the yardstick.
"""

from __future__ import annotations

import dataclasses
import functools
import math
import statistics
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, Literal

import numpy as np

from cellerate.errors import DataError
from cellerate.format import counted
from cellerate.messages import Message, argument
from cellerate.observe.bench.record import Entry, Record

THRESHOLD = 0.05
"""The smallest slowdown that counts, as a share."""
CONFIDENCE = 0.998
"""The confidence of the intervals: chance makes one job in a thousand slower. A comparison has dozens of jobs."""
LEAST_SESSIONS = 3
"""The fewest sessions that show how processes differ."""
BUSY, STOLEN = 0.10, 0.05
"""The share of the processors that others may take before a comparison says so."""
# The quantiles that count: of the calls of a turn, and of the turns of a session.
_FAST_CALLS, _FAST_TURNS = 0.1, 0.25
# The fewest jobs for a usual variance.
_FEWEST_JOBS = 3
_MACHINE = ("cpu", "processor", "cores")

Verdict = Literal["slower", "faster", "same", "unknown"]
_ORDER: tuple[Verdict, ...] = ("slower", "faster", "same", "unknown")


@dataclasses.dataclass(frozen=True)
class Effect:
    """The change of a job's time from the first record to the second.

    Attributes:
        entry: The job, as the second record has it.
        before_s: The median in the first record, in seconds.
        ratio: The second time over the first, corrected for the speed of the machine: above 1 is slower.
        low: The lower end of its interval.
        high: The upper end.
        verdict: "slower" and "faster" beyond doubt and beyond the threshold; "unknown" where too few sessions were
            measured to tell.
        note: A further difference; "" for none.
    """

    entry: Entry
    before_s: float
    ratio: float
    low: float
    high: float
    verdict: Verdict
    note: str

    @property
    def regression(self) -> bool:
        """True if Cellerate became slower; a slower peer does not count."""
        return self.entry.ours and self.verdict == "slower"


@dataclasses.dataclass(frozen=True)
class RecordComparison:
    """Two records beside each other.

    Attributes:
        names: A short description of each record, which shows how they differ.
        warnings: The doubts about the comparison.
        drift: The ratio of the yardstick's times, second record over first.
        threshold: The smallest slowdown that counts.
        effects: The effects on all jobs that both records have; regressions first.
        lost: A sentence on each job that Cellerate did only in the first record; each is a regression.
    """

    names: tuple[str, str]
    warnings: tuple[str, ...]
    drift: float
    threshold: float
    effects: tuple[Effect, ...]
    lost: tuple[str, ...]

    @property
    def regressions(self) -> int:
        """The number of our jobs that became slower or are missing."""
        return len(self.lost) + sum(effect.regression for effect in self.effects)

    @property
    def judged(self) -> bool:
        """True if anything of ours could be judged; if not, "nothing regressed" would be meaningless."""
        return bool(self.lost) or any(one.entry.ours and one.verdict != "unknown" for one in self.effects)

    @property
    def sentence(self) -> str:
        """The result in one sentence."""
        if not self.judged:
            return "Nothing could be judged."
        ours = [effect for effect in self.effects if effect.entry.ours]
        faster = sum(effect.verdict == "faster" for effect in ours)
        same = sum(effect.verdict == "same" for effect in ours)
        found = self.regressions
        worse = "Nothing regressed" if not found else counted(found, "regression")
        return f"{worse}; of Cellerate's jobs {faster} became faster, and of {same} no difference is certain."

    def to_json(self) -> dict[str, Any]:
        """The comparison as JSON values."""
        kept = ("names", "warnings", "drift", "threshold", "lost")
        effects = [
            {
                **dict(zip(("case", "work", "contestant", "precision", "call"), one.entry.key, strict=True)),
                **{"ours": one.entry.ours, "before_s": one.before_s, "after_s": one.entry.median_s},
                **{name: getattr(one, name) for name in ("ratio", "low", "high", "verdict", "note")},
                "regression": one.regression,
            }
            for one in self.effects
        ]
        found = {name: getattr(self, name) for name in kept}
        return {
            **{"sentence": self.sentence, "regressions": self.regressions, "judged": self.judged},
            **{**found, "confidence": CONFIDENCE, "effects": effects},
        }


def compare(a: Record, b: Record, threshold: float = THRESHOLD) -> RecordComparison:
    """Compares two records of one machine and one size.

    Args:
        a: The earlier one.
        b: The later one.
        threshold: The smallest slowdown that counts, as a share.

    Raises:
        DataError: The records are from different machines or sizes, so their times cannot compare the code.
    """
    _check_alike(a, b)
    before, paired = a.by_key, a.run == b.run
    pairs = [
        (before[one.key], one)
        for one in b.entries
        # Two records of one run share the turns of the peers.
        if one.key in before and (one.ours or not paired)
    ]
    changes = [_change(*pair, paired=paired) for pair in pairs]
    usual = _usual_variance(changes)
    effects = [
        _effect(*pair, change, usual=usual, threshold=threshold)
        for pair, change in zip(pairs, changes, strict=True)
    ]
    effects.sort(key=lambda one: (not one.regression, not one.entry.ours, _ORDER.index(one.verdict)))
    return RecordComparison(
        names=(name_of(a), name_of(b)),
        warnings=tuple(_warnings(a, b, effects)),
        drift=_drift(a, b),
        threshold=threshold,
        effects=tuple(effects),
        lost=tuple(_lost(a, b)),
    )


def name_of(record: Record) -> str:
    """A record in a few words: the version of Cellerate, and the time of the measurement."""
    when = record.started[:16].replace("T", " ")
    return f"cellerate {record.versions.get('cellerate', 'of an unknown version')}, {when}"


def _check_alike(a: Record, b: Record) -> None:
    for what in _MACHINE:
        one, other = a.machine.get(what), b.machine.get(what)
        if one != other:
            raise DataError(
                f"the records are of different machines ({what}: {one} and {other}), so their times cannot compare the "
                "code. Measure both on one machine."
            )
    if a.sizes != b.sizes or a.quick != b.quick:
        raise DataError(
            "the records are of models of different sizes, so their times cannot be compared: measure both with the "
            "same options, such as `cellerate bench --quick`."
        )


@dataclasses.dataclass(frozen=True)
class _Change:
    """The change of a job.

    Attributes:
        found: The logarithm of the ratio.
        samples: The sessions behind the ratio, one sample for each mean.
    """

    found: float
    samples: tuple[np.ndarray, ...]

    @property
    def degrees(self) -> int:
        """The degrees of freedom of the variance."""
        return sum(len(sample) - 1 for sample in self.samples)

    @property
    def variance(self) -> float:
        """The variance of a session, if the samples spread alike; infinite with no degrees of freedom."""
        spread = sum(float(((sample - sample.mean()) ** 2).sum()) for sample in self.samples)
        return spread / self.degrees if self.degrees else math.inf

    def half_width(self, usual: float | None) -> float:
        """Half the width of the interval around `found`.

        Few sessions show little of their spread, so the usual variance of all jobs counts as much as the job's own.
        Sources: Student, "The probable error of a mean", 1908; Smyth, "Linear models and empirical Bayes methods",
        2004.
        """
        if not self.degrees:
            return 0.0  # one session each gives neither an interval nor a verdict
        variance, degrees = self.variance, self.degrees
        if usual is not None:
            variance, degrees = (variance + usual) / 2, 2 * degrees
        return _student(degrees) * math.sqrt(variance * sum(1 / len(sample) for sample in self.samples))


def _change(a: Entry, b: Entry, *, paired: bool) -> _Change:
    one, other = _turns(a, paired=paired), _turns(b, paired=paired)
    if paired and one.shape == other.shape:
        apart = _sessions(other - one)
        return _Change(_middle(apart), (apart,))
    one, other = _sessions(one), _sessions(other)
    return _Change(_middle(other) - _middle(one), (one, other))


def _usual_variance(changes: Sequence[_Change]) -> float | None:
    """The median of the jobs' variances; None for too few jobs."""
    known = [change.variance for change in changes if change.degrees]
    return statistics.median(known) if len(known) >= _FEWEST_JOBS else None


def _effect(a: Entry, b: Entry, change: _Change, *, usual: float | None, threshold: float) -> Effect:
    found, half = change.found, change.half_width(usual)
    low, high = found - half, found + half
    ratio = float(np.exp(found))
    verdict: Verdict = "same"
    if min(map(len, change.samples)) < LEAST_SESSIONS:
        verdict = "unknown"
    elif low > 0 and ratio > 1 + threshold:
        verdict = "slower"
    elif high < 0 and ratio < 1 / (1 + threshold):
        verdict = "faster"
    note = "" if a.way == b.way else f"{a.way} before, {b.way} now"
    return Effect(b, a.median_s, ratio, float(np.exp(low)), float(np.exp(high)), verdict, note)


def _turns(entry: Entry, *, paired: bool) -> np.ndarray:
    """(sessions, rounds): the logarithm of the time of each turn's fast calls, as a ratio to the yardstick."""
    sessions: dict[int, list[float]] = {}
    for turn in entry.turns:
        fast = float(np.log(np.quantile(turn.seconds, _FAST_CALLS)))
        beside = 0.0 if paired else float(np.log(turn.yardstick_s))
        sessions.setdefault(turn.session, []).append(fast - beside)
    rounds = min(len(turns) for turns in sessions.values())
    return np.array([turns[:rounds] for turns in sessions.values()])


def _sessions(turns: np.ndarray) -> np.ndarray:
    """(sessions, turns) → (sessions,): each session's fast turns."""
    return np.asarray(np.quantile(turns, _FAST_TURNS, axis=-1))


def _middle(sessions: np.ndarray) -> float:
    """The mean of all sessions but the fastest and the slowest."""
    ends = 1 if len(sessions) > 2 else 0
    return float(np.sort(sessions)[ends : len(sessions) - ends].mean())


@functools.cache
def _student(degrees: int) -> float:
    """The quantile of Student's distribution that bounds the interval, from its integral."""
    # Integrated over an angle, whose tangent is the quantile by the root of the degrees, the tail is finite.
    angle = np.linspace(0, np.pi / 2, 100_001)
    area = np.cumsum(np.cos(angle) ** (degrees - 1))
    return math.sqrt(degrees) * math.tan(angle[np.searchsorted(area, CONFIDENCE * area[-1])])


def _drift(a: Record, b: Record) -> float:
    both = ([turn.yardstick_s for entry in one.entries for turn in entry.turns] for one in (a, b))
    before, after = (statistics.median(values) if values else 1.0 for values in both)
    return after / before


def _warnings(a: Record, b: Record, effects: Iterable[Effect]) -> Iterator[str]:
    if a.quick:
        yield "Both runs are quick ones: they show that everything runs, and nothing of speed."
    for which, record in (("first", a), ("second", b)):
        taken = max((one or 0.0 for one in (record.load.before, record.load.during)), default=0.0)
        if taken > BUSY:
            yield f"During the {which} run other processes took {taken:.0%} of the processors."
        if (record.load.stolen or 0.0) > STOLEN:
            yield f"During the {which} run other virtual machines took {record.load.stolen:.0%} of the processors."
        if record.sessions < LEAST_SESSIONS:
            yield Message(
                f"The {which} run has {counted(record.sessions, 'session')}; {LEAST_SESSIONS} are "
                f"needed to tell a slower program from a slower start: give it a larger {argument('budget')}."
            )
    different = [
        f"{name} {a.versions.get(name, 'missing')} and {b.versions.get(name, 'missing')}"
        for name in sorted({*a.versions, *b.versions} - {"cellerate"})
        if a.versions.get(name) != b.versions.get(name)
    ]
    if different:
        yield f"More than Cellerate differs: {', '.join(different)}."
    slower = [one.entry.title for one in effects if not one.entry.ours and one.verdict == "slower"]
    if slower:
        names = ", ".join(dict.fromkeys(slower))
        yield f"Peers are slower too, so it may not be Cellerate that changed: {names}."


def _lost(a: Record, b: Record) -> Iterator[str]:
    """The jobs that Cellerate did, and now cannot do or does wrong; jobs that were not asked for again do not count."""
    after = b.by_key
    for entry in a.entries:
        if not entry.ours or entry.key in after:
            continue
        job = f"{entry.work}, {entry.precision}"
        for left in b.left_out:
            if (left.case, left.title) == (entry.case, entry.title) and left.what in ("", job):
                yield f"{entry.case}, {job}, {entry.title}, {entry.call}: {left.reason}"
                break
