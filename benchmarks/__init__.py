"""The benchmarks: `run.py` measures a case, `pages.py` makes the pages of the records that may be published.

A folder for each kind of case; programs in it are started with `-m`, from the project's root. A folder is entered by
the modules in its `__all__`. In front of them: `cases` has the table of all, `records`, `measured` and `conditions`
make what a record says of its run, `publishing` judges it, `processes` starts contestants.
"""

from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
"""The project's folder."""
