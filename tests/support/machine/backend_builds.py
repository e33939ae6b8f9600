"""Backends as they are built for GPUs, and a machine with one."""

from cellerate.machine import gpu

TORCH = {"torch/version.py": "__version__ = '2.15.0'\ncuda: str | None = '13.2'\nhip: str | None = None\n"}
TORCH_CPU = {"torch/version.py": "from typing import Optional\ncuda: Optional[str] = None\nhip = None\n"}
TORCH_ROCM = {"torch/version.py": "cuda = None\nhip = '6.4.43482'\n"}


def build_info(**values):
    text = f"import collections\nbuild_info = collections.OrderedDict({list(values.items())!r})\n"
    return {"tensorflow/python/platform/build_info.py": text}


TENSORFLOW = build_info(
    is_cuda_build=True, cuda_version="12.5.1", cuda_compute_capabilities=["sm_60", "sm_89", "compute_90"]
)
WHEELS = [f"nvidia-{name}-cu12<13; extra == 'and-cuda'" for name in ("cublas", "cudnn", "nccl")]


HERE = gpu.GpuFacts(
    driver="580.65.06",
    cuda="13.0",
    devices=(gpu.Device("NVIDIA H100 80GB HBM3", (9, 0), 85_000_000_000, 84_000_000_000),),
    hidden=(),
    settings={},
    problems=(),
)
