"""`cellerate env`: the facts a bug report needs."""

from typing import Annotated

import typer

from cellerate.cli.options import Json
from cellerate.cli.output import emit, emit_json


def env(
    json: Json = False,
    devices: Annotated[
        bool, typer.Option("--devices", help="Also ask each installed backend for its devices (slow).")
    ] = False,
) -> None:
    """Show machine, versions, backends and the native core.

    Example:
        cellerate env --json
    """
    from cellerate.environment import backend_devices, installed_backends, machine, versions
    from cellerate.kernels import cpu

    backends = installed_backends()
    missing = cpu.missing()
    core: dict[str, object] = {"missing": missing}
    if missing is None:
        core = {"target": cpu.target(), "targets": cpu.available_targets(), "threads": cpu.num_threads()}
    report = {"machine": machine(), "versions": versions(), "backends": backends, "native core": core}
    if devices:
        report["devices"] = {backend: backend_devices(backend) for backend in backends}
    if json:
        emit_json(report)
        return
    for title, values in report.items():
        emit(title)
        if isinstance(values, dict):
            for name, value in values.items():
                emit(f"  {name:<14} {_shown(name, value)}")
        else:
            emit("  " + (", ".join(values) or "none: pip install 'cellerate[jax]'"))


def _shown(name: str, value: object) -> str:
    if name.endswith("_bytes") and isinstance(value, int):
        return f"{value / 2**30:.1f} GiB"
    return ", ".join(map(str, value)) if isinstance(value, list) else str(value)
