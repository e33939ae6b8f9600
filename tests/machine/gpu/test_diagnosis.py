"""Why a backend or a kernel does not run on the GPU that is there, and how to fix it."""

import dataclasses
import platform

import pytest

from cellerate.machine import gpu
from support.machine.backend_builds import HERE, TENSORFLOW, TORCH, TORCH_CPU, TORCH_ROCM, WHEELS, build_info

TORCH_FOR_12 = "pip install --force-reinstall 'torch<2.15' --index-url https://download.pytorch.org/whl/cu126"


def here(cuda="13.0", capability=(9, 0), **settings):
    """This machine with another driver, GPU or environment."""
    driver = {"13": "580.65.06", "12": "550.54.14", "11": "470.82.01"}[cuda[:2]]
    device = dataclasses.replace(HERE.devices[0], name="a GPU", compute_capability=capability)
    return dataclasses.replace(HERE, driver=driver, cuda=cuda, devices=(device,), settings=settings)


def test_backends_for_this_driver_and_gpu_compute_on_it(install):
    install("torch", "2.15.0", files=TORCH)
    install("nvidia-cudnn-cu13", "9.26.0.51")
    install("jax", "0.10.2")
    install("jaxlib", "0.10.2")
    install("jax-cuda12-plugin", "0.10.2")
    install("tensorflow", "2.21.0", files=TENSORFLOW)
    assert [gpu.diagnose(backend, HERE) for backend in ("tensorflow", "jax", "torch")] == [None] * 3
    assert gpu.describe("torch", HERE) == "GPU: CUDA 13.2, cuDNN 9.26.0.51, takes GPU memory as it needs it"
    assert gpu.describe("jax", HERE).startswith("GPU: CUDA 12, takes 75 % of GPU memory at its start")
    assert gpu.describe("tensorflow", HERE).startswith("GPU: CUDA 12.5.1, takes nearly all GPU memory")


@pytest.mark.parametrize(
    ("facts", "fix"),
    [
        (HERE, "pip install --force-reinstall torch"),
        (here("12.4"), TORCH_FOR_12),
        (here("13.0", (7, 0)), TORCH_FOR_12),
        (here("12.8", (12, 0)), "update the NVIDIA driver to 580 or newer, then pip install --force-reinstall torch"),
        (here("11.4", (8, 0)), f"update the NVIDIA driver to 525 or newer, then {TORCH_FOR_12}"),
        (here("13.0", None), "pip install --force-reinstall torch"),
    ],
    ids=["CUDA 13", "CUDA 12", "Volta", "Blackwell with CUDA 12", "CUDA 11", "no capability"],
)  # fmt: skip
def test_torch_without_cuda_is_told_the_build_for_this_driver_and_gpu(install, facts, fix):
    install("torch", "2.13.0+cpu", files=TORCH_CPU)
    assert gpu.diagnose("torch", facts) == f"torch 2.13.0+cpu is a build without CUDA: {fix}"


def test_torch_for_other_gpus_says_so(install):
    install("torch", "2.13.0+rocm6.4", files=TORCH_ROCM)
    assert gpu.diagnose("torch", HERE) == (
        "torch 2.13.0+rocm6.4 is a build for ROCm 6.4.43482: pip install --force-reinstall torch"
    )


@pytest.mark.parametrize(("cuda", "major"), [("13.0", 13), ("12.4", 12)])
def test_jax_without_a_plugin_is_told_the_one_for_this_driver(install, cuda, major):
    install("jax", "0.10.2")
    reason = f"JAX 0.10.2 has no CUDA plugin: pip install 'jax[cuda{major}]'"
    assert gpu.diagnose("jax", here(cuda)) == reason


def test_jax_with_a_plugin_of_another_version_is_told_to_upgrade_both(install):
    install("jax", "0.10.2")
    install("jaxlib", "0.10.2")
    install("jax-cuda13-plugin", "0.9.0")
    assert gpu.diagnose("jax", HERE) == (
        "jax-cuda13-plugin 0.9.0 does not fit jaxlib 0.10.2, so JAX does not use it: "
        "pip install --upgrade 'jax[cuda13]'"
    )


@pytest.mark.parametrize(
    ("platforms", "kept"),
    [("cpu", True), ("cpu,cuda", True), ("tpu", True), ("", False), ("cuda,cpu", False), ("gpu", False)],
)
def test_jax_platforms_keeps_jax_from_the_gpu_where_the_first_is_another(install, platforms, kept):
    install("jax", "0.10.2")
    install("jaxlib", "0.10.2")
    install("jax-cuda13-plugin", "0.10.2")
    reason = f"JAX_PLATFORMS={platforms!r} keeps JAX from the GPU: unset JAX_PLATFORMS"
    assert gpu.diagnose("jax", here(JAX_PLATFORMS=platforms)) == (reason if kept else None)


def test_tensorflow_without_cuda_is_told_to_be_replaced_where_there_is_one_with_it(install, monkeypatch):
    install("tensorflow-cpu", "2.21.0", files=build_info(is_cuda_build=False))
    assert gpu.diagnose("tensorflow", HERE) == (
        "tensorflow-cpu 2.21.0 is a build without CUDA: pip uninstall tensorflow-cpu, "
        "then pip install 'tensorflow[and-cuda]'"
    )
    monkeypatch.setattr(platform, "machine", lambda: "aarch64")
    assert "use JAX or torch" in gpu.diagnose("tensorflow", HERE)
    assert "pip" not in gpu.diagnose("tensorflow", HERE)


@pytest.mark.parametrize(
    ("installed", "missing"),
    [
        ((), "nvidia-cublas-cu12 and 2 more packages, which are"),
        (("nccl",), "nvidia-cublas-cu12 and nvidia-cudnn-cu12, which are"),
        (("cublas", "nccl"), "nvidia-cudnn-cu12, which is"),
    ],
)
def test_tensorflow_without_its_libraries_names_them(install, installed, missing):
    install("tensorflow", "2.21.0", WHEELS, TENSORFLOW)
    for name in installed:
        install(f"nvidia-{name}-cu12")
    assert gpu.diagnose("tensorflow", HERE) == (
        f"TensorFlow 2.21.0 needs {missing} not installed: pip install 'tensorflow[and-cuda]'"
    )


@pytest.mark.parametrize(
    ("facts", "instead"),
    [
        (here("12.4"), f"update the driver to 580 or newer, or {TORCH_FOR_12}"),
        (here("12.8", (10, 0)), "update the driver to 580 or newer"),
        (here("11.4", (8, 0)), "update the driver to 580 or newer"),
    ],
    ids=["CUDA 12", "Blackwell", "CUDA 11"],
)
def test_torch_for_a_newer_cuda_than_the_drivers_says_both(install, facts, instead):
    install("torch", "2.15.0", files=TORCH)
    assert gpu.diagnose("torch", facts) == (
        f"torch 2.15.0 is built for CUDA 13.2, and the driver ({facts.driver}) runs CUDA {facts.cuda} "
        f"at most: {instead}"
    )


@pytest.mark.parametrize(("cuda", "fits"), [("11.4", False), ("12.0", True), ("13.0", True)])
def test_driver_fits_tensorflow_from_the_same_first_number_on(install, cuda, fits):
    install("tensorflow", "2.21.0", files=TENSORFLOW)
    reason = gpu.diagnose("tensorflow", here(cuda))
    assert (reason is None) == fits
    if reason is not None:
        assert reason.endswith("runs CUDA 11.4 at most: update the driver to 525 or newer")


@pytest.mark.parametrize(
    ("backend", "capability", "fits"),
    [
        ("torch", (7, 0), False),
        ("torch", (7, 5), True),
        ("jax", (6, 1), False),
        ("tensorflow", (5, 2), False),
        ("tensorflow", (6, 0), True),
    ],
)
def test_gpu_below_the_smallest_capability_of_a_build_is_too_old(install, backend, capability, fits):
    install("torch", "2.15.0", files=TORCH)
    install("jax", "0.10.2")
    install("jaxlib", "0.10.2")
    install("jax-cuda13-plugin", "0.10.2")
    install("tensorflow", "2.21.0", files=TENSORFLOW)
    facts = here(capability=capability)
    reason = gpu.diagnose(backend, facts)
    fix = {
        "torch": f"compute capability 7.5 or later, here is a GPU with {capability[0]}.{capability[1]}: {TORCH_FOR_12}",
        "jax": "here is a GPU with 6.1: pip install --upgrade 'jax[cuda12]'",
        "tensorflow": "compute capability 6.0 or later, here is a GPU with 5.2: use JAX or torch",
    }[backend]
    assert reason is None if fits else reason.endswith(fix)
    newer = (*facts.devices, *HERE.devices)
    assert gpu.diagnose(backend, dataclasses.replace(facts, devices=newer)) is None


@pytest.mark.parametrize(
    ("facts", "reason"),
    [
        (HERE, None),
        (here("13.0", (12, 0)), None),
        (here("13.0", None), None),
        (here("13.0", (8, 9)), "they need compute capability 9.0 (Hopper) or later, here is a GPU with 8.9"),
        (
            here("12.4"),
            "they are compiled for CUDA 13, and the driver (550.54.14) runs CUDA 12.4 at most: "
            "update the driver to 580 or newer",
        ),
        (dataclasses.replace(HERE, cuda=None), None),
    ],
)
def test_kernels_need_hopper_and_a_driver_for_cuda_13(facts, reason):
    assert gpu.diagnose_kernels(facts) == reason


@pytest.mark.parametrize(
    ("backend", "settings", "words"),
    [
        ("torch", {}, "takes GPU memory as it needs it"),
        ("tensorflow", {}, "takes nearly all"),
        ("tensorflow", {"TF_FORCE_GPU_ALLOW_GROWTH": "false"}, "takes nearly all"),
        ("tensorflow", {"TF_FORCE_GPU_ALLOW_GROWTH": "true"}, "takes GPU memory as it needs it"),
        ("jax", {}, "takes 75 % of"),
        ("jax", {"XLA_PYTHON_CLIENT_PREALLOCATE": "true"}, "takes 75 % of"),
        ("jax", {"XLA_PYTHON_CLIENT_PREALLOCATE": "false"}, "takes GPU memory as it needs it"),
        ("jax", {"XLA_CLIENT_MEM_FRACTION": ".5"}, "takes the share '.5' of"),
        ("jax", {"XLA_PYTHON_CLIENT_MEM_FRACTION": ".4"}, "takes the share '.4' of"),
    ],
)
def test_memory_says_what_a_backend_takes_and_how_to_change_it(backend, settings, words):
    said = gpu.memory(backend, settings)
    assert said.startswith(words)
    assert ("as it needs it" in said) and (said.endswith(")") == ("start" in said))
