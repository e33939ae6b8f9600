"""Packages made up in a folder."""

import importlib
import platform
import sys

import pytest

from cellerate.machine.gpu import builds


@pytest.fixture
def install(tmp_path, monkeypatch):
    """Makes up an installed package; nothing else but Python's own is installed then."""
    folder = tmp_path / "packages"
    folder.mkdir()
    own = [path for path in sys.path if not path.rstrip("/").endswith(("site-packages", "dist-packages"))]
    monkeypatch.setattr(sys, "path", [str(folder), *own])
    monkeypatch.setattr(builds, "_LOADER_CACHE", tmp_path / "ld.so.cache")
    monkeypatch.delenv("LD_LIBRARY_PATH", raising=False)
    monkeypatch.setattr(platform, "system", lambda: "Linux")
    monkeypatch.setattr(platform, "machine", lambda: "x86_64")
    monkeypatch.setattr(sys, "platform", "linux")

    def package(name, version="1.0", requires=(), files=()):
        about = folder / f"{name.replace('-', '_')}-{version}.dist-info"
        about.mkdir()
        lines = ["Metadata-Version: 2.1", f"Name: {name}", f"Version: {version}"]
        lines += [f"Requires-Dist: {requirement}" for requirement in requires]
        (about / "METADATA").write_text("\n".join(lines) + "\n")
        for file, text in dict(files).items():
            (folder / file).parent.mkdir(parents=True, exist_ok=True)
            (folder / file).write_text(text)
        importlib.invalidate_caches()

    return package
