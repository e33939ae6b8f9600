"""The CUDA that each installed backend is built for, read from its files."""

import pytest

from cellerate.machine import gpu
from support.machine.backend_builds import HERE, TENSORFLOW, TORCH, TORCH_CPU, TORCH_ROCM, WHEELS, build_info

ON_LINUX = '; platform_system == "Linux"'


@pytest.mark.parametrize("backend", ["tensorflow", "jax", "torch"])
def test_backend_that_is_not_installed_has_no_build_and_says_how_to_install_it(install, backend):
    assert gpu.build_of(backend) is None
    assert f"pip install 'cellerate[{backend}]'" in gpu.diagnose(backend, HERE)


@pytest.mark.parametrize(
    ("version", "files", "cuda", "other"),
    [
        ("2.15.0", TORCH, "13.2", None),
        ("2.13.0+cpu", TORCH_CPU, None, None),
        ("2.13.0+rocm6.4", TORCH_ROCM, None, "ROCm 6.4.43482"),
        ("2.13.0+cu126", {}, "12.6", None),
        ("2.13.0+cpu", {}, None, None),
        ("2.13.0", {}, "", None),
        ("2.13.0", {"torch/version.py": "cuda = ("}, "", None),
    ],
    ids=["CUDA", "CPU", "ROCm", "CUDA by version", "CPU by version", "does not say", "broken"],
)
def test_build_of_torch_is_what_its_version_file_says(install, version, files, cuda, other):
    install("torch", version, files=files)
    found = gpu.build_of("torch")
    assert (found.version, found.cuda, found.other, found.absent) == (version, cuda, other, ())


def test_build_of_torch_misses_the_wheels_that_it_requires_on_this_machine(install):
    requires = [
        "sympy>=1.13",
        f"nvidia-cudnn-cu13==9.26.0.51{ON_LINUX}",
        f"nvidia-nccl-cu13==2.30.7{ON_LINUX}",
        f"cuda-toolkit[cublas,cudart]==13.2.2{ON_LINUX}",
        "nvidia-arm-cu13==1.0; platform_system == 'Linux' and platform_machine == 'aarch64'",
        "nvidia-intel-cu13==1.0; platform_system == 'Linux' and platform_machine == 'x86_64'",
        "nvidia-late-cu13==1.0; python_version >= '3.20'",
        "nvidia-wish-cu13==1.0; extra == 'wish'",
    ]
    install("torch", "2.15.0", requires, TORCH)
    install("nvidia-nccl-cu13", "2.30.7")
    assert gpu.build_of("torch").absent == ("nvidia-cudnn-cu13", "cuda-toolkit", "nvidia-intel-cu13")
    install("nvidia_cudnn_cu13", "9.26.0.51")
    found = gpu.build_of("torch")
    assert (found.cudnn, found.absent) == ("9.26.0.51", ("cuda-toolkit", "nvidia-intel-cu13"))


@pytest.mark.parametrize("major", [12, 13])
def test_build_of_jax_is_that_of_its_plugin(install, major):
    install("jax", "0.10.2")
    install("jaxlib", "0.10.2")
    assert gpu.build_of("jax").cuda is None
    wheels = [f"nvidia-cudnn-cu{major}>=9.8; sys_platform == 'linux' and extra == 'with-cuda'"]
    install(f"jax-cuda{major}-plugin", "0.10.2", [f"jax-cuda{major}-pjrt==0.10.2", *wheels])
    found = gpu.build_of("jax")
    assert (found.cuda, found.misfit) == (str(major), None)
    assert found.absent == (f"jax-cuda{major}-pjrt", f"nvidia-cudnn-cu{major}")
    install(f"jax-cuda{major}-pjrt", "0.10.2")
    install(f"nvidia-cudnn-cu{major}", "9.12.0.46")
    found = gpu.build_of("jax")
    assert (found.cudnn, found.absent) == ("9.12.0.46", ())


@pytest.mark.parametrize(
    ("plugin", "fits"), [("0.10.2", True), ("0.10.2.post1", True), ("0.10.1", False), ("0.10", False)]
)
def test_plugin_of_jax_fits_by_the_numbers_of_jaxlib(install, plugin, fits):
    install("jax", "0.10.2")
    install("jaxlib", "0.10.2+local")
    install("jax-cuda12-plugin", plugin)
    assert (gpu.build_of("jax").misfit is None) == fits


def test_build_of_tensorflow_is_that_of_its_build_file_and_the_wheels_of_its_extra(install):
    install("tensorflow", "2.21.0", WHEELS, TENSORFLOW)
    found = gpu.build_of("tensorflow")
    assert (found.cuda, found.smallest_capability) == ("12.5.1", (6, 0))
    assert found.absent == ("nvidia-cublas-cu12", "nvidia-cudnn-cu12", "nvidia-nccl-cu12")
    for name in ("cublas", "cudnn", "nccl"):
        install(f"nvidia-{name}-cu12", "9.3.0.75")
    found = gpu.build_of("tensorflow")
    assert (found.cudnn, found.absent) == ("9.3.0.75", ())


@pytest.mark.parametrize(
    ("files", "cuda"),
    [(build_info(is_cuda_build=False), None), ({}, ""), (build_info(is_cuda_build=True, cuda_version="64_1"), "64_1")],
    ids=["without CUDA", "does not say", "strange"],
)  # fmt: skip
def test_build_of_tensorflow_cpu_is_known_by_its_build_file(install, files, cuda):
    install("tensorflow-cpu", "2.21.0", files=files)
    found = gpu.build_of("tensorflow")
    assert (found.distribution, found.cuda) == ("tensorflow-cpu", cuda)
    assert gpu.describe("tensorflow", HERE)


@pytest.mark.parametrize("where", ["LD_LIBRARY_PATH", "ld.so.cache"])
def test_cudnn_of_the_system_stands_for_the_wheels(install, tmp_path, monkeypatch, where):
    install("tensorflow", "2.21.0", WHEELS, TENSORFLOW)
    (tmp_path / "lib").mkdir()
    monkeypatch.setenv("LD_LIBRARY_PATH", f":{tmp_path / 'none'}:{tmp_path / 'lib'}")
    (tmp_path / "ld.so.cache").write_bytes(b"\0libcudnn.so.90\0libcudnn.so.8\0")
    assert gpu.build_of("tensorflow").absent
    if where == "LD_LIBRARY_PATH":
        (tmp_path / "lib" / "libcudnn.so.9").touch()
    else:
        (tmp_path / "ld.so.cache").write_bytes(b"\0libcudnn.so.9\0/usr/lib/libcudnn.so.9\0")
    assert gpu.build_of("tensorflow").absent == ()
