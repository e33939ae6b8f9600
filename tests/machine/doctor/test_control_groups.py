"""The limits of containers, in versions 1 and 2 of control groups."""

import pytest

from cellerate.machine.doctor import control_groups
from support.machine.machines import GB, plant


def test_cpu_quota_of_nested_groups_is_the_lowest(tmp_path):
    plant(
        tmp_path,
        {
            "proc/self/cgroup": "0::/outer/inner\n",
            "sys/fs/cgroup/outer/cpu.max": "150000 100000\n",
            "sys/fs/cgroup/outer/cpu.stat": "nr_periods 10\nnr_throttled 4\nthrottled_usec 9\n",
            "sys/fs/cgroup/outer/inner/cpu.max": "400000 100000\n",
        },
    )
    assert control_groups.cpu_quota(tmp_path) == control_groups.CpuQuota(1.5, 10, 4)


def test_limits_of_version_1_are_those_of_each_controller(tmp_path):
    plant(
        tmp_path,
        {
            "proc/self/cgroup": "9:memory:/box\n8:pids:/\n2:cpu,cpuacct:/box\n1:name=systemd:/\n0::/\n",
            "sys/fs/cgroup/cpu/cpu.cfs_quota_us": "-1\n",
            "sys/fs/cgroup/cpu/cpu.cfs_period_us": "100000\n",
            "sys/fs/cgroup/cpu,cpuacct/box/cpu.cfs_quota_us": "50000\n",
            "sys/fs/cgroup/cpu,cpuacct/box/cpu.cfs_period_us": "100000\n",
            "sys/fs/cgroup/memory/memory.limit_in_bytes": "9223372036854771712\n",
            "sys/fs/cgroup/memory/box/memory.limit_in_bytes": "1000\n",
            "sys/fs/cgroup/memory/box/memory.usage_in_bytes": "900\n",
            "sys/fs/cgroup/memory/box/memory.stat": "cache 7\ntotal_inactive_file 300\n",
            "sys/fs/cgroup/memory/box/memory.oom_control": "oom_kill_disable 0\nunder_oom 0\noom_kill 2\n",
            "sys/fs/cgroup/pids/pids.max": "100\n",
            "sys/fs/cgroup/pids/pids.current": "120\n",
        },
    )
    assert control_groups.cpu_quota(tmp_path) == control_groups.CpuQuota(0.5, 0, 0)
    assert control_groups.memory_limit(tmp_path) == control_groups.MemoryLimit(1000, 600, 2)
    assert control_groups.threads_left(tmp_path) == 0


@pytest.mark.parametrize("own", ["0::/../../elsewhere\n", "0::/docker/abc\n", None])
def test_limit_of_a_container_that_sees_its_own_groups_alone_is_that_of_the_mount(tmp_path, own):
    files = {"sys/fs/cgroup/cpu.max": "200000 100000\n"} | ({} if own is None else {"proc/self/cgroup": own})
    plant(tmp_path, files)
    assert control_groups.cpu_quota(tmp_path).processors == 2


def test_free_memory_of_a_container_counts_what_the_kernel_can_drop(machine):
    files = {
        "sys/fs/cgroup/box/memory.max": f"{8 * GB}\n",
        "sys/fs/cgroup/box/memory.current": f"{7 * GB}\n",
        "sys/fs/cgroup/box/memory.stat": f"anon 5\ninactive_file {5 * GB}\n",
    }
    shown = [one.found for one in machine.examine(files=files) if one.topic == "memory"]
    assert "6 GB of 8 GB are free" in shown
