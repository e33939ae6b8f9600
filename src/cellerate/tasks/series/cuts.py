"""Says which windows a series loses because it is cut at gaps and where values are missing."""

from __future__ import annotations

from cellerate.data.series import SeriesData
from cellerate.format import counted
from cellerate.messages import Message, argument
from cellerate.tasks.judging import count_in

# Fewer lost windows are not mentioned.
_SHARE = 0.02


def lost_to_cuts(data: SeriesData, window: int, horizon: int) -> str:
    """Say how many windows and rows are lost to gaps and to rows that were dropped.

    Args:
        data: The series.
        window: Rows of the input.
        horizon: Rows to forecast.

    Returns:
        A sentence on the loss and its remedies; "" if almost nothing is lost.
    """
    span = window + horizon
    rows: dict[str, int] = {}
    for first, stop, name in data.segments:
        rows[name] = rows.get(name, 0) + stop - first
    without = sum(max(0, count - span + 1) for count in rows.values())
    kept = sum(count_in((first, stop), span) for first, stop, _ in data.segments)
    if without - kept <= _SHARE * without:
        return ""
    unused = sum(stop - first for first, stop, _ in data.segments if stop - first < span)
    gaps, dropped = _cuts(data)
    cuts, ways = [], []
    if gaps:
        about = ""
        if data.times is not None and data.frequency is not None:
            before, after = data.form.write(data.times[gaps[0] - 1 : gaps[0] + 1])
            about = f" (the first from {before} to {after}; the frequency is {data.frequency.name})"
        cuts.append(counted(len(gaps), "gap") + about)
        ways.append(f"over gaps that are usual, such as nights and holidays: {argument('gaps', 'ignore')}")
    if dropped:
        cuts.append(f"{counted(dropped, 'place')} where values are missing")
        ways.append(f"with values in their place: {argument('missing', 'interpolate')}")
    longest = max(stop - first for first, stop, _ in data.segments)
    return Message(
        f"{kept:,} of {without:,} windows of {window:,} rows and {horizon:,} to forecast cross none of the series' "
        f"{' and '.join(cuts)}. {unused:,} of {data.rows:,} rows are in "
        f"no window; the longest stretch has {longest:,}. "
        f"To read on {', or '.join(ways)}."
    )


def _cuts(data: SeriesData) -> tuple[list[int], int]:
    """The first row after each gap, and the number of places within a series where rows were dropped."""
    gaps, dropped = [], 0
    for (_, stop, name), (first, _, after) in zip(data.segments, data.segments[1:], strict=False):
        if name == after:
            if first == stop:
                gaps.append(first)
            else:
                dropped += 1
    return gaps, dropped
