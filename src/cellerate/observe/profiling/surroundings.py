"""The machine of a profile and its load by others, in words."""

from __future__ import annotations

from cellerate.machine.doctor import Others
from cellerate.machine.environment import machine, versions


def surroundings(others: Others) -> tuple[dict[str, str], list[str]]:
    """The machine, the versions that matter and the load, and a note if that spoils the figures.

    Args:
        others: The use of the processors by other processes since the profile began.
    """
    here = machine()
    facts = {name: str(here[name]) for name in ("processor", "cores", "system", "python")}
    load, cost = others.told()
    note = f"While this was measured, {load}: {cost}."
    return facts | ({"load": load} if load else {}) | versions(), [note] if cost else []
