"""The benchmarks: `run.py` measures a case, `pages.py` makes the pages of the records that may be published.

Each kind of case has a folder; its programs are started with `-m`, from the project's root, and the modules in its
`__all__` are its interface. Beside the folders, `cases` has the table of all cases; `records`, `measured` and
`conditions` describe the run in its record; `publishing` judges the record; `processes` starts contestants.
"""

from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
"""The project's folder."""
