"""Compiled programs on disk: found again by the next process, by no other processor, and never in the way."""

import os
import subprocess
import sys

import keras
import pytest

pytestmark = [
    pytest.mark.keras,
    pytest.mark.backends,
    pytest.mark.skipif(keras.backend.backend() != "jax", reason="JAX's own"),
]

# Compiles two programs, and prints their results, how many were compiled, and what keep_programs said.
PROGRAM = """
import pathlib, sys
import jax, jax.monitoring
from cellerate.bridges import jax_programs
if len(sys.argv) > 2:
    jax_programs.CPUINFO = pathlib.Path(sys.argv[2])
kept = jax_programs.keep_programs(pathlib.Path(sys.argv[1]))
events = []
jax.monitoring.register_event_listener(lambda event, **_: events.append(event))
value = jax.jit(lambda x: (x @ x.T).sum())(jax.random.normal(jax.random.key(0), (5, 7)))
print(kept, float(value), events.count("/jax/compilation_cache/cache_hits"))
"""


def run(folder, *arguments, **environment):
    words = [sys.executable, "-W", "error", "-c", PROGRAM, str(folder), *map(str, arguments)]
    done = subprocess.run(words, capture_output=True, text=True, env=os.environ | environment, check=True)
    kept, value, hits = done.stdout.split()
    return kept == "True", float(value), int(hits)


NAMED = """
import pathlib, sys
import jax
from cellerate.bridges import jax_programs
jax_programs.keep_programs(pathlib.Path(sys.argv[1]))

@jax.jit
def double(x):
    with jax.named_scope(sys.argv[2]):
        return jax.numpy.sin(x) * 2

print(double.lower(1.0).compile().as_text())
"""


def kept_files(folder):
    return sorted(path for path in (folder / "jax").glob("*/*") if path.is_file())


def test_programs_are_found_again_and_compute_the_same(tmp_path):
    first, second = run(tmp_path), run(tmp_path)
    assert first[0] and first[2] == 0
    assert second[2] >= 2
    assert second[1] == first[1]


def test_programs_of_another_processor_are_not_taken(tmp_path):
    run(tmp_path)
    (tmp_path / "cpuinfo").write_text("vendor_id\t: GenuineIntel\nflags\t\t: sse2 avx\n\nflags: none\n")
    assert run(tmp_path, tmp_path / "cpuinfo")[2] == 0
    assert run(tmp_path, tmp_path / "cpuinfo")[2] >= 2


def test_programs_compiled_for_fewer_instructions_are_told_apart(tmp_path):
    run(tmp_path)
    assert run(tmp_path, XLA_FLAGS="--xla_cpu_max_isa=SSE4_2")[2] == 0


def test_program_has_the_names_of_its_own_operations(tmp_path):
    for name in ("first", "second"):
        words = [sys.executable, "-c", NAMED, str(tmp_path), name]
        text = subprocess.run(words, capture_output=True, text=True, check=True).stdout
        assert f"/{name}/" in text


@pytest.mark.parametrize("left", [0, 100])
def test_damaged_program_is_compiled_anew(tmp_path, left):
    expected = run(tmp_path)[1]
    for path in kept_files(tmp_path):
        path.write_bytes(path.read_bytes()[:left])
    # JAX warns of one that it cannot read, and goes on; an empty one is deleted before.
    words = [sys.executable, "-c", PROGRAM, str(tmp_path)]
    done = subprocess.run(words, capture_output=True, text=True, check=True)
    assert float(done.stdout.split()[1]) == expected
    assert ("persistent compilation cache" in done.stderr) == (left > 0)


@pytest.mark.parametrize(
    "environment",
    [{"JAX_ENABLE_COMPILATION_CACHE": "false"}, {"XLA_FLAGS": "--xla_force_host_platform_device_count=2"}],
    ids=["switched off", "two devices"],
)
def test_programs_are_not_kept(tmp_path, environment):
    assert not run(tmp_path, **environment)[0]
    assert not kept_files(tmp_path)


def test_folder_of_the_user_wins(tmp_path):
    assert not run(tmp_path / "ours", JAX_COMPILATION_CACHE_DIR=str(tmp_path / "theirs"))[0]
    assert not kept_files(tmp_path / "ours")


def test_folder_that_cannot_be_made_keeps_nothing(tmp_path):
    (tmp_path / "jax").write_text("in the way")
    assert not run(tmp_path)[0]


def test_what_was_written_first_goes_first(tmp_path, monkeypatch):
    from cellerate.bridges import jax_programs

    monkeypatch.setattr(jax_programs, "_MOST_BYTES", 250)
    (tmp_path / "a").mkdir()
    for number, size in enumerate((100, 100, 0, 100, 100)):
        path = tmp_path / "a" / str(number)
        path.write_bytes(b"x" * size)
        os.utime(path, (number, number))
    jax_programs._shrink(tmp_path)
    assert sorted(path.name for path in (tmp_path / "a").iterdir()) == ["3", "4"]
