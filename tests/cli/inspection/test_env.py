import dataclasses
import json
import os
import subprocess
import sys

import pytest

from cellerate.machine import gpu
from cellerate.machine.environment import installed_backends

NO_GPU = gpu.GpuFacts(
    None, None, (), (), {"JAX_PLATFORMS": "cpu"}, ("no NVIDIA driver was found (libcuda.so.1)",)
)
TWO_GPUS = gpu.GpuFacts(
    driver="580.65.06",
    cuda="13.0",
    devices=(gpu.Device("NVIDIA H100 80GB HBM3", (9, 0), 85 * 2**30, 84 * 2**30), gpu.Device("old", None, None, None)),
    hidden=(gpu.Device("NVIDIA L4", (8, 9), 24 * 2**30, None),),
    settings={"CUDA_VISIBLE_DEVICES": "0,1"},
    problems=(),
)  # fmt: skip


def test_env_json_has_machine_versions_and_backends(cellerate):
    code, out, err = cellerate("env", "--json")
    assert (code, err) == (0, "")
    found = json.loads(out)
    assert found["machine"]["cores"] >= 1
    assert found["machine"]["memory_bytes"] > 2**20
    assert {"cellerate", "keras", "numpy"} <= set(found["versions"])
    assert found["backends"] == installed_backends()
    core = found["native core"]
    assert core["target"] == os.environ.get("CELLERATE_TARGET", core["targets"][0])
    assert found["native core"]["threads"] >= 1


@pytest.mark.parametrize(
    ("name", "value", "hint"), [("CELLERATE_TARGET", "sse9", "scalar"), ("CELLERATE_THREADS", "many", "1024")]
)
def test_env_with_a_wrong_setting_of_the_native_core_is_one_clear_error(name, value, hint):
    # The core reads its environment once, so this needs a separate process.
    program = "from cellerate.cli.main import main; main()"
    done = subprocess.run(
        [sys.executable, "-c", program, "env"],
        env=os.environ | {name: value},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 2
    assert value in done.stderr and hint in done.stderr and "Traceback" not in done.stderr


def test_env_without_the_native_core_says_what_is_missing(cellerate, monkeypatch):
    monkeypatch.setattr("cellerate.kernels.native.why_unavailable", lambda: "not compiled: install g++")
    code, out, _ = cellerate("env")
    assert code == 0
    assert "not compiled: install g++" in out


def test_env_as_text_shows_the_same_facts(cellerate):
    code, out, _ = cellerate("env")
    assert code == 0
    for word in ("machine", "versions", "backends", "keras", "GiB", ", ".join(installed_backends())):
        assert word in out


def test_env_without_a_gpu_says_so_once(cellerate, monkeypatch):
    monkeypatch.setattr("cellerate.machine.gpu.facts", lambda: NO_GPU)
    code, out, _ = cellerate("env")
    assert code == 0
    said = out.splitlines()
    assert said[said.index("gpu") + 1 :] == [
        "  none           no NVIDIA driver was found (libcuda.so.1)",
        "  JAX_PLATFORMS='cpu' (where JAX computes, the first one counts)",
    ]


def test_env_names_missing_facts_about_gpus(cellerate, monkeypatch):
    facts = dataclasses.replace(NO_GPU, incomplete="free memory is missing: pip install nvidia-ml-py")
    monkeypatch.setattr("cellerate.machine.gpu.facts", lambda: facts)
    code, out, _ = cellerate("env")
    assert code == 0
    assert out.endswith("\n  incomplete     free memory is missing: pip install nvidia-ml-py\n")


def test_env_with_gpus_reports_the_use_by_each_backend(cellerate, monkeypatch):
    monkeypatch.setattr("cellerate.machine.gpu.facts", lambda: TWO_GPUS)
    monkeypatch.setattr(
        "cellerate.kernels.cuda.launch.why_unavailable", lambda device: "there is no compiler"
    )
    code, out, _ = cellerate("env")
    assert code == 0
    said = out.splitlines()
    said = said[said.index("gpu") + 1 :]
    assert said[:5] == [
        "  driver         580.65.06, runs CUDA up to 13.0",
        "  gpu 0          NVIDIA H100 80GB HBM3, compute capability 9.0, 85.0 GiB, 84.0 GiB free",
        "  gpu 1          old",
        "  hidden 1       NVIDIA L4, compute capability 8.9, 24.0 GiB, by CUDA_VISIBLE_DEVICES",
        "  CUDA_VISIBLE_DEVICES='0,1' (the GPUs that CUDA may use)",
    ]
    backends = [f"  {name:<14} {gpu.describe(name, TWO_GPUS)}" for name in installed_backends()]
    assert said[5:-1] == backends
    assert said[-1] == "  kernels        Cellerate's own do not run on the GPU: there is no compiler"


def test_env_names_the_compiler_of_the_gpu_kernels(cellerate, monkeypatch):
    monkeypatch.setattr("cellerate.machine.gpu.facts", lambda: TWO_GPUS)
    monkeypatch.setattr("cellerate.kernels.cuda.launch.why_unavailable", lambda device: None)
    monkeypatch.setattr("cellerate.cli.inspection.env._compiler", lambda: {"cuda-core": "1.0"})
    assert "  kernels        Cellerate's own can run on the GPU (cuda-core 1.0)\n" in cellerate("env")[1]


@pytest.mark.parametrize("facts", [NO_GPU, TWO_GPUS], ids=["no GPU", "two GPUs"])
def test_env_json_has_the_same_facts_about_gpus(cellerate, monkeypatch, facts):
    monkeypatch.setattr("cellerate.machine.gpu.facts", lambda: facts)
    monkeypatch.setattr(
        "cellerate.kernels.cuda.launch.why_unavailable", lambda device: "there is no compiler"
    )
    code, out, _ = cellerate("env", "--json")
    assert code == 0
    found = json.loads(out)["gpu"]
    assert [device["name"] for device in found["devices"]] == [device.name for device in facts.devices]
    assert (found["driver"], found["cuda"]) == (facts.driver, facts.cuda)
    assert (found["settings"], found["problems"]) == (facts.settings, list(facts.problems))
    assert list(found["backends"]) == installed_backends()
    for backend, said in found["backends"].items():
        assert said["reason"] == gpu.diagnose(backend, facts)
    assert found["kernels"]["reason"] == (gpu.diagnose_kernels(facts) or "there is no compiler")
    assert set(found["kernels"]["packages"]) == {"cuda-core", "cuda-bindings", "nvidia-cuda-nvrtc"}


@pytest.mark.slow
def test_env_devices_asks_every_backend(cellerate):
    code, out, _ = cellerate("env", "--devices", "--json")
    assert code == 0
    assert all(json.loads(out)["devices"][name] for name in installed_backends())
