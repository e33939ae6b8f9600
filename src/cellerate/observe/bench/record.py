"""The record of a run of `bench`: plain values for JSON, without code that measures.

The page, the table in the terminal and every comparison are made from it alone. A record may come from anywhere, so it
is checked when it is read: the error says which value does not fit the schema.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

from pydantic import ConfigDict, Field, TypeAdapter, ValidationError
from pydantic.dataclasses import dataclass

from cellerate.errors import DataError
from cellerate.files import atomic_write, read_regular
from cellerate.format import one_line
from cellerate.measure import as_timing

SCHEMA = 1
_LARGEST = 64 << 20  # bytes; a genuine record is below 1 MiB
_STRICT = ConfigDict(extra="forbid", allow_inf_nan=False, strict=True)
_Seconds = Annotated[float, Field(gt=0, lt=1e6, strict=False)]
_Count = Annotated[int, Field(ge=0, lt=1 << 62)]
_Share = Annotated[float, Field(ge=0, le=1e3, strict=False)]
_Name = Annotated[str, Field(max_length=2000)]


@dataclass(frozen=True, config=_STRICT)
class Turn:
    """One turn of a contestant at a job.

    Attributes:
        session: The number of the session: in each, every contestant is a new process.
        round: The number of the round in the session.
        yardstick_s: The time of the yardstick around this turn, in seconds.
        seconds: The times of calls; of short calls, the means of several in succession.
    """

    session: _Count
    round: _Count
    yardstick_s: _Seconds
    seconds: Annotated[tuple[_Seconds, ...], Field(min_length=1, max_length=10_000)]


@dataclass(frozen=True, config=_STRICT)
class Entry:
    """A contestant at a job, measured after its result was found right.

    Attributes:
        case: "train", "infer" or "generate".
        work: The work of the case.
        contestant: The short name.
        title: The name in words.
        ours: Whether Cellerate computes it.
        precision: "float32" or "int8".
        call: The timed call, in words.
        way: The way it was run, such as the number of threads.
        items: Characters of a call.
        error: The error of its result against float64.
        bound: The largest error that counts as right.
        median_s: The median of all calls, in seconds.
        p20_s: The 20th percentile.
        p80_s: The 80th percentile.
        peak_share: Its share of the speed of multiply-adds on registers here; None if that is not known.
        turns: Its turns in order.
    """

    case: _Name
    work: _Name
    contestant: _Name
    title: _Name
    ours: bool
    precision: _Name
    call: _Name
    way: _Name
    items: Annotated[int, Field(ge=1, lt=1 << 40)]
    error: _Share
    bound: _Share
    median_s: _Seconds
    p20_s: _Seconds
    p80_s: _Seconds
    peak_share: _Share | None
    turns: Annotated[tuple[Turn, ...], Field(min_length=1, max_length=10_000)]

    @property
    def key(self) -> tuple[str, ...]:
        """The key of the entry in a record, the same in another record."""
        return self.case, self.work, self.contestant, self.precision, self.call

    @property
    def items_per_s(self) -> float:
        """Characters a second."""
        return self.items / self.median_s


@dataclass(frozen=True, config=_STRICT)
class LeftOut:
    """A job that is not timed, and why.

    Attributes:
        case: The case.
        title: The contestant in words.
        ours: Whether Cellerate would have computed it.
        what: The job; "" for all of the contestant's jobs.
        wrong: True if its result was wrong; otherwise it is missing or cannot run.
        reason: The reason, in words.
    """

    case: _Name
    title: _Name
    ours: bool
    what: _Name
    wrong: bool
    reason: _Name


@dataclass(frozen=True, config=_STRICT)
class Load:
    """The processor time of others; each a share of all time, None if the system does not report it.

    Attributes:
        before: Other processes, while we did nothing.
        during: Other processes, during the run.
        stolen: Other virtual machines, during the run.
    """

    before: _Share | None
    during: _Share | None
    stolen: _Share | None


@dataclass(frozen=True, config=_STRICT)
class Record:
    """A run of `bench`.

    Attributes:
        schema: The version of this format.
        run: The id of the run. Two records of one run share it, and took turns.
        started: The start of the run, ISO 8601 with the zone.
        seconds: The duration of the run.
        command: The command that repeats it.
        quick: True if the run only checked that everything works.
        machine: The machine.
        versions: Of Cellerate, Keras, the backends and the other runtimes.
        sizes: The sizes of the model.
        sessions: The number of sessions, in each of which all contestants were started.
        rounds: The turns of each contestant in a session.
        load: The load of the machine by others.
        peaks: Operations a second on registers, by precision.
        entries: The timed jobs.
        left_out: The jobs that were not timed.
    """

    schema: int
    run: _Name
    started: _Name
    seconds: Annotated[float, Field(ge=0, lt=1e9, strict=False)]
    command: _Name
    quick: bool
    machine: dict[_Name, _Name | int]
    versions: dict[_Name, _Name]
    sizes: dict[_Name, int | tuple[int, ...]]
    sessions: _Count
    rounds: _Count
    load: Load
    peaks: dict[_Name, Annotated[float, Field(gt=0, lt=1e18, strict=False)]]
    entries: tuple[Entry, ...]
    left_out: tuple[LeftOut, ...]

    @property
    def by_key(self) -> dict[tuple[str, ...], Entry]:
        """The entries by their keys."""
        return {entry.key: entry for entry in self.entries}


_RECORD: TypeAdapter[Record] = TypeAdapter(Record)


def summarised(turns: tuple[Turn, ...]) -> tuple[float, float, float]:
    """The median and the 20th and 80th percentile of all calls, in seconds, as an `Entry` keeps them."""
    timing = as_timing([seconds for turn in turns for seconds in turn.seconds])
    return timing.median_s, timing.percentile_s(0.2), timing.percentile_s(0.8)


def to_json(record: Record) -> dict[str, object]:
    """The record as JSON values."""
    return dict(_RECORD.dump_python(record, mode="json"))


def write_record(record: Record, path: Path) -> None:
    """Writes a record, whole or not at all.

    Raises:
        OutputError: The file could not be written.
    """
    with atomic_write(path) as beside:
        beside.write_bytes(_RECORD.dump_json(record, indent=1) + b"\n")


def read_record(path: Path) -> Record:
    """Reads a record that `write_record` wrote.

    Raises:
        DataError: There is no such file, it is not a record, or a newer Cellerate wrote it.
    """
    content = read_regular(path, _LARGEST, "give a JSON file that `cellerate bench` wrote")
    try:
        found = json.loads(content)
        version = found.get("schema")
        if isinstance(version, int) and not isinstance(version, bool) and version != SCHEMA:
            raise DataError(
                f"{path} has the schema {version}, and this Cellerate reads {SCHEMA}: read it with the version that "
                "wrote it, or run `cellerate bench` again."
            )
        record = _RECORD.validate_json(content)
    except DataError:
        raise
    except (ValueError, AttributeError, RecursionError) as error:
        first = error.errors()[0] if isinstance(error, ValidationError) else None
        reason = f"{'.'.join(map(str, first['loc']))}: {first['msg']}" if first else "it is not a JSON object"
        raise DataError(f"{path} is not a record of `cellerate bench`: {one_line(reason):.200}.") from error
    if len(record.by_key) != len(record.entries):
        raise DataError(f"{path} is not a record of `cellerate bench`: it has two entries of one job.")
    return record
