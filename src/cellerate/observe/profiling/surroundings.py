"""Where a profile was taken, in words."""

from cellerate.machine.environment import machine, versions


def surroundings() -> dict[str, str]:
    """The machine and the versions that matter."""
    here = machine()
    told = {name: str(here[name]) for name in ("processor", "cores", "system", "python")}
    return told | versions()
