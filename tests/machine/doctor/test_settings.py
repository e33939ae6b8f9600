"""Variables of the environment, `keras.json` and the flags of XLA."""

import importlib
import sys

import pytest

from cellerate.machine.doctor import settings
from support.machine.machines import NO_GPU, WITH_GPU, said

DEBUGGING = {
    "KERAS_MAX_EPOCHS": ("1", None, "problem"),
    "KERAS_MAX_STEPS_PER_EPOCH": ("5", None, "problem"),
    "TF_USE_LEGACY_KERAS": ("1", "0", "problem"),
    "TF_ENABLE_ONEDNN_OPTS": ("0", "1", "note"),
    "TF_DETERMINISTIC_OPS": ("1", "0", "note"),
    "JAX_DISABLE_JIT": ("true", "False", "problem"),
    "JAX_DEBUG_NANS": ("1", "0", "problem"),
    "JAX_NUM_CPU_DEVICES": ("4", "1", "note"),
    "JAX_DEFAULT_MATMUL_PRECISION": ("highest", None, "note"),
    "XLA_PYTHON_CLIENT_ALLOCATOR": ("platform", "default", "problem"),
    "PYTORCH_NO_CUDA_MEMORY_CACHING": ("1", "0", "problem"),
    "CUDA_LAUNCH_BLOCKING": ("1", "0", "problem"),
    "MALLOC_PERTURB_": ("165", "0", "problem"),
    "PYTHONDEVMODE": ("1", None, "note"),
    "PYTHONMALLOC": ("debug", "malloc", "note"),
    "ATEN_CPU_CAPABILITY": ("default", None, "note"),
    "ONEDNN_MAX_CPU_ISA": ("AVX2", None, "note"),
    "DNNL_MAX_CPU_ISA": ("AVX2", None, "note"),
    "OPENBLAS_CORETYPE": ("Haswell", None, "note"),
    "NPY_DISABLE_CPU_FEATURES": ("AVX512F", None, "note"),
}
ON_A_GPU = (
    "JAX_DEFAULT_MATMUL_PRECISION", "XLA_PYTHON_CLIENT_ALLOCATOR", "PYTORCH_NO_CUDA_MEMORY_CACHING",
    "CUDA_LAUNCH_BLOCKING",
)  # fmt: skip


@pytest.mark.parametrize("name", DEBUGGING)
def test_setting_for_debugging_is_found_with_what_unsets_it(machine, name):
    bites, harmless, status = DEBUGGING[name]
    facts = WITH_GPU if name in ON_A_GPU else NO_GPU
    (found,) = said(machine.examine(environ={name: bites}, facts=facts))
    assert (found.topic, found.status, found.found, found.fix) == (
        "settings", status, f"{name}={bites}", f"unset {name}"
    )  # fmt: skip
    assert found.cost
    for value in filter(None, (harmless, " ")):
        assert said(machine.examine(environ={name: value}, facts=facts)) == []


@pytest.mark.parametrize("name", ON_A_GPU)
def test_setting_for_a_gpu_is_no_finding_without_one(machine, name):
    assert said(machine.examine(environ={name: DEBUGGING[name][0]})) == []


@pytest.mark.parametrize(
    ("name", "backend"),
    [("TF_USE_LEGACY_KERAS", "jax"), ("JAX_DISABLE_JIT", "torch"), ("ATEN_CPU_CAPABILITY", "jax")],
)
def test_setting_of_a_backend_that_is_not_installed_is_no_finding(machine, name, backend):
    assert said(machine.examine(environ={name: DEBUGGING[name][0]}, backends=(backend,))) == []


def test_configuration_of_keras_that_is_not_json_is_a_note(machine):
    (found,) = said(machine.examine(keras_file="{"))
    assert (found.topic, found.status) == ("settings", "note")
    assert "JSONDecodeError" in found.found


@pytest.fixture
def jaxlib(tmp_path, monkeypatch):
    """An installed jaxlib whose library is made up."""
    monkeypatch.delitem(sys.modules, "jaxlib", raising=False)
    monkeypatch.syspath_prepend(tmp_path)
    (tmp_path / "jaxlib").mkdir()
    (tmp_path / "jaxlib/__init__.py").touch()
    importlib.invalidate_caches()
    return tmp_path / "jaxlib/libjax_common.so"


def test_flag_of_xla_is_known_by_its_name_in_the_library(jaxlib):
    jaxlib.write_bytes(b"\0xla_cpu_max_isa\0intra_op_parallelism_threads\0")
    assert settings.xla_knows("xla_cpu_max_isa")
    assert not settings.xla_knows("xla_cpu_fastest")
    assert not settings.xla_knows("intra_op_parallelism_threads")


def test_flag_of_an_xla_that_cannot_be_read_is_taken_as_known(jaxlib):
    assert settings.xla_knows("xla_cpu_fastest")
