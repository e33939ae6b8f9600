"""The report as one HTML file that needs nothing else: no script, no network, nothing from beside it.

A module of its own because a page has rules that Markdown has not: escaping, a policy that forbids scripts, charts.
"""

import functools
from pathlib import Path
from typing import Any

from jinja2 import Environment, FileSystemLoader, StrictUndefined
from markupsafe import Markup

import cellerate
from cellerate import format as shown
from cellerate.files import atomic_write
from cellerate.report import figures, view
from cellerate.report.record import Run
from cellerate.report.samples import samples
from cellerate.report.svg import Chart
from cellerate.report.svg.canvas import clean

FILE_NAME = "report.html"
_TEMPLATES = Path(__file__).parent / "templates"
# A chart is drawn for a wide page and once more for a narrow one: text that is scaled down cannot be read.
_WIDE, _HALF, _NARROW = 1072.0, 510.0, 340.0


def write_html(run: Run, folder: str | Path) -> Path:
    """Writes the report of a run into a folder, whole or not at all, and gives the path of the file.

    Args:
        run: All that the report says; any text in it is shown as it is.
        folder: Made where it is missing.

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
        changes=view.changes_table("Before and after, measured in this run", run.verdict.rows)
        if run.verdict
        else None,
        files=view.used(run),
        reproduce=view.wrapped(run.command),
        training_command=view.training_command(run),
        waterfalls=figures.waterfalls(run),
        front=figures.front(run),
        passes=view.passes_table(run),
        pass_views=[view.pass_view(one, figures.curves(one)) for one in run.passes],
        training=view.training_table(run),
        candidates=view.candidates_table(run),
        speeds=view.speeds_table(run),
        samples=samples(run),
        explanation=view.explanation_table(run),
        environment=view.environment_table(run),
        settings=view.settings_table(run),
    )


def render(template: str, **values: Any) -> str:
    """Fills one of the templates; it knows how to draw, and everything else that it shows is given."""
    names = iter(range(1_000_000_000))

    def charts(chart: Chart, wide: bool, small: bool = False) -> Markup:
        """A chart at each of its widths; only one of them is ever shown."""
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
    """Writes a text file, whole or not at all; what UTF-8 cannot hold becomes "?"."""
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
    """Text without what neither HTML nor XML may hold."""
    return clean(value) if isinstance(value, str) and not isinstance(value, Markup) else value
