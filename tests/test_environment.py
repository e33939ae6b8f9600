import os
import platform
import subprocess
import sys

import pytest

from cellerate import environment
from cellerate.errors import BackendError


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="only glibc has these settings")
def test_keep_freed_memory_keeps_what_is_freed_in_the_process():
    """64 MiB written and freed, ten times: the kernel hands out fresh pages once, not ten times."""
    program = (
        "import resource, sys\n"
        "import numpy as np\n"
        "from cellerate.environment import keep_freed_memory\n"
        "if sys.argv[1] == 'keep': assert keep_freed_memory()\n"
        "np.ones(16 << 20, np.float32)\n"
        "before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt\n"
        "for _ in range(10): np.ones(16 << 20, np.float32)\n"
        "print(resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before)\n"
    )
    faults = {
        how: int(subprocess.run([sys.executable, "-c", program, how], check=True, capture_output=True).stdout)
        for how in ("keep", "leave")
    }
    assert faults["keep"] < faults["leave"] / 5


def test_select_backend_of_an_unknown_name_lists_the_known_ones():
    with pytest.raises(BackendError, match="tensorflow, jax, torch"):
        environment.select_backend("mxnet")


def test_select_backend_takes_the_argument_before_the_environment(monkeypatch):
    monkeypatch.setattr(environment, "installed_backends", lambda: ["tensorflow", "jax", "torch"])
    monkeypatch.setenv("KERAS_BACKEND", "torch")
    assert environment.select_backend("jax") == "jax"
    assert os.environ["KERAS_BACKEND"] == "jax"


def test_select_backend_that_is_not_installed_says_how_to_install_it(monkeypatch):
    monkeypatch.setattr(environment, "installed_backends", lambda: ["jax"])
    with pytest.raises(BackendError, match=r"cellerate\[torch\]"):
        environment.select_backend("torch")


def test_require_of_a_missing_package_names_the_extra():
    with pytest.raises(BackendError, match=r"pip install 'cellerate\[plots\]'"):
        environment.require("no_such_package_here", "plots", "Drawing")
