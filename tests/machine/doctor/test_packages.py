"""Installed packages and their versions."""

import importlib
import sys

import pytest

from cellerate.machine import gpu
from cellerate.machine.doctor import packages
from cellerate.machine.doctor.packages import Package
from support.machine.machines import GB, PACKAGES, plant, said


@pytest.mark.parametrize("name", ["tensorflow-cpu", "tf-nightly"])
def test_tensorflow_by_another_name_is_among_what_fits(machine, name):
    installed = {"tensorflow": None, name: PACKAGES["tensorflow"]}
    found = machine.examine(installed=installed)
    assert said(found) == []
    (versions,) = [finding.found for finding in found if finding.topic == "versions"]
    assert f", {name} 2.21.0, jax 0.10.2, " in versions


def test_libraries_for_gpus_are_not_in_vain_where_a_driver_is(machine):
    facts = gpu.GpuFacts("580.1", None, (), (), {}, ("the driver does not start: reboot",))
    installed = {
        "torch": Package("2.13.0", ("nvidia-cublas",)),
        "nvidia-cublas": Package("13.1", size_bytes=GB),
    }
    assert [one.topic for one in said(machine.examine(facts=facts, installed=installed))] == ["gpu"]


def test_versions_without_packaging_are_a_note_that_says_what_to_install(machine, monkeypatch):
    monkeypatch.setitem(sys.modules, "packaging.requirements", None)
    (found,) = said(machine.examine())
    assert (found.topic, found.status, found.fix) == ("versions", "note", "pip install 'cellerate[cli]'")
    assert "packaging" in found.found


def test_package_is_found_with_its_requirements_and_nvidia_s_with_its_files(tmp_path, monkeypatch):
    plant(
        tmp_path,
        {
            "nvidia_cudnn_cu12-9.1.dist-info/METADATA": (
                "Metadata-Version: 2.1\nName: nvidia-cudnn-cu12\nVersion: 9.1\nRequires-Dist: nvidia-cublas-cu12\n"
            ),
            "nvidia_cudnn_cu12-9.1.dist-info/RECORD": (
                "nvidia/cudnn/lib/libcudnn.so.9,sha256=x,1000\nnvidia/__init__.py,,\nnvidia/LICENSE,sha256=x,24\n"
            ),
            # From Python 3.13 on only files that are there count.
            **dict.fromkeys(("nvidia/cudnn/lib/libcudnn.so.9", "nvidia/__init__.py", "nvidia/LICENSE"), ""),
        },
    )
    monkeypatch.syspath_prepend(tmp_path)
    importlib.invalidate_caches()
    assert packages.find_package("nvidia-cudnn-cu12") == Package(
        "9.1",
        ("nvidia-cublas-cu12",),
        frozenset({"nvidia/cudnn/lib/libcudnn.so.9", "nvidia/__init__.py", "nvidia/LICENSE"}),
        1024,
    )
    assert packages.find_package("no-such-package-here") is None
    numpy = packages.find_package("numpy")
    assert numpy.version and not numpy.files
