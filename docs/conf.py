"""Sphinx's settings for the site: `make site`."""

import os
import re
import sys
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent
ROOT = HERE.parent
sys.path.insert(0, str(HERE))

project = "Cellerate"
copyright = "the Cellerate authors"  # noqa: A001  (the name that Sphinx reads)
_found = re.search(r'__version__ = "(.*)"', (ROOT / "src" / "cellerate" / "__init__.py").read_text())
version = release = _found[1] if _found else ""
extensions = ["myst_nb", "sphinx.ext.autodoc", "sphinx.ext.napoleon"]
exclude_patterns = ["decisions"]
templates_path = ["templates"]
# Single backquotes in docstrings are code.
default_role = "code"
autodoc_typehints = "description"
autodoc_typehints_description_target = "documented"
python_use_unqualified_type_names = True
# `settings.takes_fields_of` lists the fields of records in a section of their own.
napoleon_custom_sections = [("Options", "params_style")]
myst_heading_anchors = 4
myst_enable_extensions = ["smartquotes"]
# Notebooks are run once for each state of theirs; what installs packages is not.
nb_execution_mode = "cache"
nb_execution_in_temp = True
nb_execution_timeout = 300
nb_execution_raise_on_error = True
# The progress of a training, which a notebook shows while it goes on.
nb_output_stderr = "remove"
nb_merge_streams = True
html_theme = "furo"
html_title = "Cellerate"
html_copy_source = False
html_show_sphinx = False
html_theme_options = {"navigation_with_keys": True}
# Sites of all versions lie beside each other (`make site-versions`), and each leads to the others.
html_context = {
    "versions": os.environ.get("CELLERATE_SITES", "").split(),
    "shown": os.environ.get("CELLERATE_SITE", ""),
}
html_sidebars = {
    "**": [
        "sidebar/brand.html",
        "sidebar/versions.html",
        "sidebar/search.html",
        "sidebar/scroll-start.html",
        "sidebar/navigation.html",
        "sidebar/scroll-end.html",
    ]
}

_LINK = re.compile(r"(?<!!)\[([^\]]*)\]\(((?:\.\./)+[^)\s]*|decisions/[^)\s]*)\)")


def _without_files(app: Any, name: str, text: list[str]) -> None:
    """Name what lies outside the site, such as a record or a source file, in place of a link to it."""

    def named(found: re.Match[str]) -> str:
        target = (HERE / name).parent / found[2].partition("#")[0]
        path = target.resolve()
        outside = HERE not in path.parents or HERE / "decisions" in (path, *path.parents)
        if not outside:
            return found[0]
        place = path.relative_to(ROOT).as_posix()
        return f"{found[1]}" if found[1].strip("`") == place else f"{found[1]} (`{place}`)"

    text[0] = _LINK.sub(named, text[0])


def _escaped(app: Any, kind: str, name: str, value: Any, options: Any, lines: list[str]) -> None:
    """Keep the star of a name such as *.jsonl, which would begin an emphasis."""
    lines[:] = [re.sub(r"(?<![\w*`'])\*(?=\.)", r"\\*", line) for line in lines]


def _mend(app: Any, error: Exception | None) -> None:
    from accessible_pages import mend_pages

    if error is None:
        mend_pages(Path(app.outdir))


def setup(app: Any) -> None:
    """Write the reference, and mend links and docstrings before pages are read, and pages once they are written."""
    from reference_pages import write_pages

    write_pages(HERE / "reference")
    app.connect("source-read", _without_files)
    app.connect("autodoc-process-docstring", _escaped)
    app.connect("build-finished", _mend)
