"""The report as one self-contained HTML file: no script, no network access, no other files."""

from __future__ import annotations

import functools
from pathlib import Path
from typing import Any

from jinja2 import Environment, FileSystemLoader, StrictUndefined
from markupsafe import Markup

import cellerate
from cellerate import format as shown
from cellerate.files import atomic_write
from cellerate.report import figures, view
from cellerate.report.gains import gains
from cellerate.report.record import Run
from cellerate.report.samples import samples
from cellerate.report.svg import Chart, clean

FILE_NAME = "report.html"
_TEMPLATES = Path(__file__).parent / "templates"
# Each chart is drawn twice, for a wide and for a narrow page, because scaled-down text is unreadable.
_WIDE, _HALF, _NARROW = 1072.0, 510.0, 340.0


def write_html(run: Run, folder: str | Path) -> Path:
    """Writes the report of a run into a folder, whole or not at all, and gives the file's path.

    Args:
        run: The content of the report; its texts are shown literally.
        folder: The folder, created if missing.

    Raises:
        OutputError: The file could not be written.
    """
    return write_page(Path(folder) / FILE_NAME, html(run))


def html(run: Run) -> str:
    """The report of a run as HTML."""
    run = view.titled(run)
    sentence, tone = view.outcome(run)
    return render(
        "report.html",
        title=f"{run.model}: what optimize found",
        run=run,
        began=view.began(run),
        sentence=sentence,
        tone=tone,
        warnings=run.verdict.warnings if run.verdict else (),
        tiles=view.tiles(run),
        gains=gains(run),
        changes=view.verdict_table(run),
        tested=view.tested_table(run),
        files=view.used(run),
        reproduce=view.wrapped(run.command),
        training_command=view.training_command(run),
        waterfalls=figures.waterfalls(run),
        front=figures.front(run),
        stages=view.stages_table(run),
        stage_views=[view.stage_view(one, figures.curves(one)) for one in run.passes],
        training=view.training_table(run),
        candidates=view.candidates_table(run),
        speeds=view.speeds_table(run),
        samples=samples(run),
        explanation=view.explanation_table(run),
        environment=view.environment_table(run),
        settings=view.settings_table(run),
    )


def render(template: str, **values: Any) -> str:
    """Fills one of the templates: they can draw charts and format numbers, and take the rest from `values`."""
    names = iter(range(1_000_000_000))

    def charts(chart: Chart, wide: bool, small: bool = False) -> Markup:
        """The chart at each of its widths; the page shows only one of them."""
        n = next(names)
        if small:
            return chart.draw(_NARROW, f"c{n}")
        drawn = Markup('<div class="only-wide">{}</div><div class="only-narrow">{}</div>')
        return drawn.format(chart.draw(_WIDE if wide else _HALF, f"c{n}w"), chart.draw(_NARROW, f"c{n}n"))

    return (
        _environment()
        .get_template(template)
        .render(
            **values,
            charts=charts,
            fresh=lambda: f"n{next(names)}",
            duration=shown.duration,
            percent=shown.percent,
            version=cellerate.__version__,
        )
    )


def write_page(path: Path, content: str) -> Path:
    """Write a text file, whole or not at all; characters that UTF-8 cannot encode become "?"."""
    with atomic_write(path) as beside:
        beside.write_bytes(content.encode(errors="replace"))
    return path


@functools.cache
def _environment() -> Environment:
    return Environment(
        loader=FileSystemLoader(_TEMPLATES),
        autoescape=True,
        undefined=StrictUndefined,
        finalize=_shown,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
    )


def _shown(value: object) -> object:
    """Removes from text what HTML and XML forbid."""
    return clean(value) if isinstance(value, str) and not isinstance(value, Markup) else value
