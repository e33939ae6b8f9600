"""A run of `bench` in words: the sentences, tables and charts of its page, and the lines of the terminal.

Only jobs of one precision are compared, and the strongest opponent comes first.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple

from cellerate import format as shown
from cellerate.observe.bench.cases import CASES
from cellerate.observe.bench.compare import BUSY, STOLEN, name_of
from cellerate.observe.bench.record import Entry, Record
from cellerate.report.bench_page import BenchPage, Section
from cellerate.report.svg import Bar, BarChart
from cellerate.report.tables import Figure, FigureTable, TableCell, cells, table
from cellerate.report.view import HeadlineFigure

_HEADS = ("Contestant", "The timed call", ">characters/s", ">a call", ">middle 60 %", ">error", ">Cellerate")
_HEADINGS = {"train": "Training", "infer": "Inference", "generate": "Generation"}
_HOW = (
    "Each contestant is a process of its own, started anew in each session, with the same weights, the same inputs "
    "and the same allocator setting. Before anything is timed, its result is compared with float64. Contestants take "
    "turns, so that a drift of the machine's speed hits all alike. A figure is the median over all turns; the whiskers "
    "hold the middle 60 % of calls.",
    "Cellerate, Keras and the backends run on as many threads as they take by themselves; torch.nn.LSTM, ONNX Runtime, "
    "OpenVINO and LiteRT on one thread or on all, whichever is faster here. GPUs are left out.",
    "A contestant that is called for each character draws it outside, by the same NumPy code. Keras compiles no loop "
    "of its own accord; loops written for one backend are faster than its calls, and are not in this race.",
)


class Pairing(NamedTuple):
    """The entries of one work of a case in one precision.

    Attributes:
        case: The case.
        work: The work.
        precision: The precision.
        ours: Our entries, fastest first.
        peers: The entries of others, strongest first.
    """

    case: str
    work: str
    precision: str
    ours: tuple[Entry, ...]
    peers: tuple[Entry, ...]

    @property
    def title(self) -> str:
        """The pairing in a few words."""
        if self.case != "train":
            return f"{self.case}, {self.work}, {self.precision}"
        return f"train, {self.precision}"

    @property
    def ratio(self) -> float | None:
        """Our speed over the strongest opponent's; None if either is missing."""
        return self.ours[0].items_per_s / self.peers[0].items_per_s if self.ours and self.peers else None

    @property
    def sentence(self) -> str:
        """The standing of Cellerate, the strongest opponent first."""
        if not self.ours:
            return f"{self.title}: Cellerate takes no part."
        best = self.ours[0]
        own = f"{best.title} makes {shown.short(best.items_per_s)} characters/s"
        if not self.peers:
            return f"{self.title}: {own}; nobody else is there to run it."
        peer, ratio = self.peers[0], best.items_per_s / self.peers[0].items_per_s
        said = f"{self.title}: {own}, {_times(ratio)} {peer.title} ({shown.short(peer.items_per_s)})"
        return f"{said}, the strongest opponent."


def races(record: Record) -> list[Pairing]:
    """The pairings of a record, in the order of the cases.

    If Cellerate is fastest by a call that its opponents lack, and also has theirs, the latter is a pairing of its own.
    """
    found: dict[tuple[str, str, str], list[Entry]] = {}
    for entry in record.entries:
        found.setdefault((entry.case, entry.work, entry.precision), []).append(entry)
    made = []
    for (case, work, precision), entries in found.items():
        ordered = sorted(entries, key=lambda one: -one.items_per_s)
        ours, peers = (tuple(one for one in ordered if one.ours == whose) for whose in (True, False))
        apart = tuple(one for one in ours if peers and one.call == peers[0].call)
        if apart and apart[0] is not ours[0]:
            ours = tuple(one for one in ours if one not in apart)
            made.append(Pairing(case, f"{work}, {apart[0].call}", precision, apart, peers))
        made.append(Pairing(case, work, precision, ours, peers))
    order = {case: place for place, case in enumerate(CASES)}
    return sorted(made, key=lambda race: (order.get(race.case, len(order)), race.precision, race.work))


def lines(record: Record) -> Iterator[str]:
    """The record as lines for a terminal."""
    for warning in warnings(record):
        yield f"warning: {shown.one_line(warning)}"
    for race in races(record):
        yield ""
        yield shown.one_line(race.sentence)
        rows = [tuple(head.removeprefix(">") for head in _HEADS)]
        rows += [tuple(shown.one_line(cell.text) for cell in row) for row in _rows(race)]
        yield from (f"  {line}" for line in shown.aligned(rows, range(2, 7)))
    left = [f"{case}: {title}{what}: {reason}" for case, title, what, reason in _left_out(record)]
    if left:
        yield ""
        yield "not timed:"
        yield from (f"  {shown.one_line(line)}" for line in left)


def page_of(record: Record) -> BenchPage:
    """The record as a page."""
    found = races(record)
    sections = [_section(record, case, [race for race in found if race.case == case]) for case in CASES]
    left = table(
        "Who was not timed, and why",
        ("Contestant", "Case", "Why"),
        [
            cells(title + what, case, TableCell(reason, tone="bad" if wrong else ""))
            for (case, title, what, reason), wrong in zip(
                _left_out(record), [one.wrong for one in record.left_out], strict=True
            )
        ],
    )
    if left:
        sections.append(Section("Not timed", tables=(left,)))
    sections.append(Section("How it was measured", sentences=_HOW, tables=tuple(_conditions(record))))
    sentence, tone = _outcome(found)
    return BenchPage(
        title="Cellerate beside what is installed here",
        facts=(
            f"{record.machine.get('processor', 'an unknown processor')}, {record.machine.get('cores', '?')} cores",
            name_of(record),
            f"{shown.counted(record.sessions, 'session')} in {shown.duration(record.seconds)}",
        ),
        sentence=sentence,
        tone=tone,  # type: ignore[arg-type]
        tiles=tuple(tile for race in found if (tile := _tile(race))),
        warnings=tuple(warnings(record)),
        sections=tuple(section for section in sections if section is not None),
        command=record.command,
    )


def warnings(record: Record) -> Iterator[str]:
    """The warnings before relying on a record."""
    if record.quick:
        yield "This was a quick run with a tiny model: it shows that everything runs, and nothing of speed."
    wrong = [one for one in record.left_out if one.ours and one.wrong]
    if wrong:
        names = ", ".join(f"{one.case}, {one.what}" for one in wrong)
        yield f"Cellerate's own result was wrong ({names}). Please report it, with what `cellerate env` says."
    for share, who, limit in (
        (record.load.before, "Before the run other processes", BUSY),
        (record.load.during, "During the run other processes", BUSY),
        (record.load.stolen, "During the run other virtual machines", STOLEN),
    ):
        if share is not None and share > limit:
            yield f"{who} took {shown.percent(share)} of the processors: measure again when the machine is quiet."


def _outcome(found: Sequence[Pairing]) -> tuple[str, str]:
    ratios = [(race.ratio, race) for race in found if race.ratio is not None]
    if not ratios:
        return "There was nobody to stand beside Cellerate here.", "good"
    ahead = [race for ratio, race in ratios if ratio > 1]
    worst, where = min(ratios, key=lambda one: one[0])
    best, highest = max(ratios, key=lambda one: one[0])
    said = (
        f"Cellerate is ahead of the strongest opponent in {len(ahead)} of {len(ratios)} races: from "
        f"{_times(worst)} {where.peers[0].title} ({where.title}) to {_times(best)} {highest.peers[0].title} "
        f"({highest.title})."
    )
    return said, "good" if 2 * len(ahead) > len(ratios) else "bad"


def _tile(race: Pairing) -> HeadlineFigure | None:
    if race.ratio is None:
        return None
    ours, peer = race.ours[0], race.peers[0]
    return HeadlineFigure(
        big=shown.number(race.ratio),
        word="times as fast as",
        label=f"{peer.title}, the strongest opponent: {race.title}",
        detail=f"{shown.short(ours.items_per_s)} beside {shown.short(peer.items_per_s)} characters/s",
        tone="good" if race.ratio > 1 else "bad",
    )


def _section(record: Record, case: str, found: Sequence[Pairing]) -> Section | None:
    if not found:
        return None
    figures = []
    for race in found:
        entries = sorted([*race.ours, *race.peers], key=lambda one: -one.items_per_s)
        bars = tuple(
            Bar(
                f"{one.title}, {one.call}",
                one.items_per_s,
                one.items / one.p80_s,
                one.items / one.p20_s,
                shown.short(one.items_per_s),
                one.ours,
            )
            for one in entries
        )
        chart = BarChart(race.title, race.sentence, bars, "characters/s, more is better")
        made = FigureTable(f"{race.title}, strongest opponent first", _HEADS, tuple(_rows(race)))
        figures.append(Figure(chart, made, wide=True))
    sizes = record.sizes
    rows = sizes.get("batch") if case == "train" else None
    model = (
        f"{sizes.get('vocabulary')} characters, embedding {sizes.get('embedding')}, one LSTM of {sizes.get('units')} "
        f"units, {sizes.get('steps')} steps{f', a batch of {rows}' if rows else ''}."
    )
    sentences = (f"{CASES[case]}. {model}", *(race.sentence for race in found))
    shares = [
        f"{race.title}: {entry.title}, {entry.call}, reaches {shown.percent(entry.peak_share)} of the speed that "
        "multiply-adds have on registers."
        for race in found
        for entry in race.ours[:1]
        if entry.peak_share is not None
    ]
    return Section(_HEADINGS[case], sentences, tuple(figures), notes=tuple(shares))


def _rows(race: Pairing) -> Iterator[tuple[TableCell, ...]]:
    """The rows of a race's table: ours, then the others, strongest first."""
    best = race.ours[0].items_per_s if race.ours else None
    for one in (*race.ours, *race.peers):
        ratio = "" if one.ours or best is None else f"{shown.number(best / one.items_per_s)} times as fast"
        tone = "" if not ratio or best is None else "good" if best > one.items_per_s else "bad"
        low, high = (shown.milliseconds(1e3 * value) for value in (one.p20_s, one.p80_s))
        yield cells(
            one.title,
            f"{one.call}, {one.way}" if "thread" in one.way else one.call,
            shown.short(one.items_per_s),
            shown.milliseconds(1e3 * one.median_s),
            f"{low} to {high}",
            f"{one.error:.0e}",
            TableCell(ratio, tone=tone, note=_same_backend(one, race.ours) if ratio else ""),  # type: ignore[arg-type]
        )


def _same_backend(peer: Entry, ours: Sequence[Entry]) -> str:
    """The factor over Keras on the same backend in words, where that is not the fastest."""
    _, _, backend = peer.contestant.partition("-")
    alike = [one for one in ours[1:] if backend and one.contestant.endswith(f"-{backend}")]
    if not alike:
        return ""
    return f"{shown.number(alike[0].items_per_s / peer.items_per_s)} on the same backend"


def _left_out(record: Record) -> list[tuple[str, str, str, str]]:
    return [(one.case, one.title, f", {one.what}" if one.what else "", one.reason) for one in record.left_out]


def _conditions(record: Record) -> Iterator[FigureTable]:
    rows = [cells(name.replace("_", " "), str(value)) for name, value in record.machine.items()]
    rows += [cells(name, version) for name, version in record.versions.items()]
    for name, share in (
        ("other processes before the run", record.load.before),
        ("other processes during the run", record.load.during),
        ("other virtual machines during the run", record.load.stolen),
    ):
        rows.append(cells(name, "unknown" if share is None else f"{shown.percent(share)} of the processors"))
    for precision, peak in record.peaks.items():
        rows.append(cells(f"multiply-adds on registers, {precision}", f"{shown.short(peak)} operations/s"))
    if found := table("The machine, what is installed, and what else ran", ("What", ""), rows):
        yield found


def _times(ratio: float) -> str:
    return f"{shown.number(ratio)} times as fast as"
