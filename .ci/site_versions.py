"""Make the sites of all released versions and of this tree, beside each other: `make site-versions`, in build/sites/.

Each version is built by its own `make site`, in a work tree of its tag, and its pages lead to the others. The page in
the folder itself leads to the newest release, and to this tree before there is one.
"""

import os
import shutil
import sys
import tempfile
from pathlib import Path

from release_check import ROOT, run

OUT = ROOT / "build" / "sites"
OWN = "latest"
_ENTRY = '<!doctype html><meta charset="utf-8"><title>Cellerate</title><meta http-equiv="refresh" content="0; url={}">'


def _build(where: Path, name: str, names: list[str]) -> None:
    shown = {"CELLERATE_SITE": name, "CELLERATE_SITES": " ".join(names)}
    run("make", "site", cwd=where, env=os.environ | shown)
    shutil.copytree(where / "build" / "site", OUT / name)


def main() -> int:
    """Builds them all."""
    tags = run("git", "-C", ROOT, "tag", "--list", "v[0-9]*", "--sort=-version:refname").split()
    names = [OWN, *(tag.removeprefix("v") for tag in tags)]
    shutil.rmtree(OUT, ignore_errors=True)
    OUT.mkdir(parents=True)
    _build(ROOT, OWN, names)
    for tag in tags:
        with tempfile.TemporaryDirectory() as folder:
            there = Path(folder) / tag
            run("git", "-C", ROOT, "worktree", "add", "--detach", there, tag)
            try:
                _build(there, tag.removeprefix("v"), names)
            finally:
                run("git", "-C", ROOT, "worktree", "remove", "--force", there)
    (OUT / "index.html").write_text(_ENTRY.format(f"{names[1] if tags else OWN}/index.html"))
    print(f"{OUT / 'index.html'}: {', '.join(names)}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
