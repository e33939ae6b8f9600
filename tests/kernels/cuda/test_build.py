"""The CUDA kernels without a GPU: what is planned, and that NVIDIA's compiler takes each of them."""

import dataclasses
import importlib
import itertools
import re
import struct
import sys
import tomllib
import types
from pathlib import Path

import numpy as np
import pytest

from cellerate.errors import BackendError, ConfigError
from cellerate.files import cache_dir
from cellerate.kernels.cuda import build
from cellerate.kernels.lstm.cuda.plan import (
    MOST_UNITS,
    ROWS,
    SHARED_BYTES,
    WAYS,
    Variant,
    choose,
    clusters,
    fitting,
    packing,
    padded_units,
)
from cellerate.kernels.lstm.reference_activations import activation_of
from support.activation_names import IN_KERNELS
from support.kernels import emulated_gpu
from support.kernels.pairwise import marked

PLAIN = Variant("forward", "bfloat16", 512, 16)


@pytest.mark.parametrize(
    ("direction", "precision", "masked", "dropped"),
    [
        pytest.param(*case, marks=marks)
        for case, marks in marked(
            ("forward", "backward"), ("bfloat16", "float16", "float32"), (False, True), (False, True)
        )
    ],
)
def test_every_variant_compiles_for_hopper(direction, precision, masked, dropped):
    # The most weights that there are registers for: their loops are unrolled the furthest.
    units = 256 if precision == "float32" else 512
    variant = Variant(direction, precision, units, 8, masked=masked, dropped=dropped)
    largest = fitting(variant)[-1]
    assert largest.name.encode() in build.build(largest, "sm_90a").code


def frame_bytes(code: bytes) -> int:
    """Bytes of local memory per thread of a cubin's kernel. Source: the ELF format, and the attributes of .nv.info."""
    (table,) = struct.unpack_from("<Q", code, 0x28)
    entry, count, names_at = struct.unpack_from("<HHH", code, 0x3A)
    sections = [struct.unpack_from("<IIQQQQ", code, table + n * entry) for n in range(count)]
    for name, _, _, _, at, size in sections:
        if not code.startswith(b".nv.info\0", sections[names_at][4] + name):
            continue
        end = at + size
        while at < end:
            kind, attribute, length = struct.unpack_from("<BBH", code, at)
            assert kind == 4
            if attribute == 0x11:  # EIATTR_FRAME_SIZE: of a symbol, so many bytes
                return struct.unpack_from("<II", code, at + 4)[1]
            at += 4 + length
    raise AssertionError("the cubin does not say how large the frame is")


@pytest.mark.parametrize(
    ("direction", "units", "rows"),
    [("forward", 512, 8), ("forward", 1024, 8), ("forward", 1024, 16), ("backward", 512, 16)],
)
def test_kernels_of_few_rows_keep_everything_in_registers(direction, units, rows):
    # A loop that is not unrolled indexes weights, which puts them all into memory: a step took 28 µs in place of 5.
    variant = Variant(direction, "bfloat16", units, rows)
    assert frame_bytes(build.build(variant, "sm_90a").code) == 0


@pytest.mark.parametrize(
    ("direction", "precision", "dropped"),
    [
        ("forward", "bfloat16", False),
        ("backward", "bfloat16", True),
        ("forward", "float32", True),
        ("backward", "float32", True),
    ],
)
def test_weights_that_there_is_no_room_for_compile(direction, precision, dropped):
    variant = Variant(direction, precision, 1024, 8, dropped=dropped)
    assert min(dataclasses.astuple(variant.tiers)) > 0
    assert build.build(variant, "sm_90a").code.startswith(b"\x7fELF")


@pytest.mark.parametrize(
    ("way", "precision", "units", "rows", "direction"),
    [
        ("turns", "bfloat16", 512, 40, "backward"),
        ("turns", "float32", 64, 24, "backward"),
        ("wide", "float16", 512, 40, "forward"),
        ("wide", "tf32", 256, 32, "forward"),
        ("tiled", "bfloat16", 1024, 152, "forward"),
        ("tiled", "float16", 256, 48, "forward"),
        ("tiled", "bfloat16", 1024, 152, "backward"),
        ("tiled", "float16", 512, 80, "backward"),
    ],
)
def test_every_way_compiles_for_hopper(way, precision, units, rows, direction):
    variant = Variant(direction, precision, units, rows, **WAYS[way])
    assert variant.way == way and variant.fits
    assert variant.name.encode() in build.build(variant, "sm_90a").code


def test_ways_have_kernels_where_their_weights_have_room():
    def ways(**changes):
        return {one.way for one in fitting(dataclasses.replace(PLAIN, **changes), WAYS)}

    assert ways() == {"plain", "wide", "tiled"}
    assert ways(direction="backward") == {"plain", "turns", "tiled"}
    # Wide products take h as it is: not multiplied by masks, nor in two parts.
    assert ways(dropped=True) == ways(precision="float32", units=256) == {"plain"}
    assert ways(precision="float32", units=256, direction="backward") == {"plain", "turns"}
    assert ways(precision="tf32", units=256) == {"plain", "wide"}
    # A part of these weights is read from global memory in each step, or from shared memory.
    assert ways(units=1024) == {"plain", "tiled"}
    assert ways(precision="tf32") == {"plain"}
    back = dataclasses.replace(PLAIN, direction="backward")
    assert {one.rows for one in fitting(back, ("turns",))} == {16, 24, 32, 40}


def test_every_variant_fits_a_block_with_some_rows():
    kinds = itertools.product(
        ("forward", "backward"), ("bfloat16", "float16", "float32"), (False, True), (False, True)
    )
    sizes = sorted({padded_units(units) for units in range(1, MOST_UNITS + 1)})
    for (direction, precision, masked, dropped), units in itertools.product(kinds, sizes):
        assert fitting(Variant(direction, precision, units, 8, masked=masked, dropped=dropped))


@pytest.mark.parametrize(
    "variant",
    [
        Variant("forward", "bfloat16", 64, 8),
        Variant("forward", "float32", 96, 8, dropped=True),
        Variant("forward", "float16", 576, 8, dropped=True),
        Variant("backward", "bfloat16", 576, 8),
        Variant("backward", "float32", 32, 8),
    ],
    ids=lambda v: f"{v.direction}-{v.precision}-{v.units}{'-dropped' * v.dropped}",
)
def test_packed_weights_are_where_the_matrix_units_expect_them(variant):
    # Each number says from where in (H, 4, H) it comes.
    units, own = variant.units, variant.block_units
    weights = np.arange(units * 4 * units).reshape(units, 4, units)
    order = packing(variant)
    word = 1 if variant.precision == "float32" else 2
    rows, columns = (units, 4 * own) if variant.direction == "backward" else (4 * own, units)
    packed = weights.reshape(order.shape).transpose(order.axes)
    packed = packed.reshape(variant.blocks, columns // (8 * word), rows // 16, 32, 4, word)

    block, product, tile, lane, part, number = np.indices(packed.shape)
    row = lane // 4 + 8 * (part % 2)
    column = product * 8 * word + (lane % 4 + 4 * (part // 2)) * word + number
    if variant.direction == "backward":
        of_h, gate, unit = tile * 16 + row, column // own, column % own
    elif variant.dropped:
        of_h, gate, unit = column, tile % 4, tile // 4 * 16 + row
    else:
        of_h, gate, unit = column, row // 8 * 2 + row % 2, tile * 4 + row % 8 // 2
    np.testing.assert_array_equal(packed, weights[of_h, gate, block * own + unit])


@pytest.mark.parametrize("activation", IN_KERNELS)
def test_every_activation_compiles_for_hopper(activation):
    # Backward computes values, too.
    variant = Variant("backward", "float16", 32, 8, activation, activation)
    assert build.build(variant, "sm_90a").code.startswith(b"\x7fELF")


@pytest.mark.parametrize("name", IN_KERNELS)
def test_every_activation_and_its_derivative_equal_the_oracle(name):
    x = np.concatenate([np.linspace(-8, 8, 1003), [-3, -1, -0.5, 0, 0.5, 1, 3, 6]]).astype(np.float32)
    values, derivatives = emulated_gpu.activation(name, x)
    expected = activation_of(name)
    np.testing.assert_allclose(values, expected.value(x.astype(np.float64)), rtol=2e-6, atol=2e-6)
    np.testing.assert_allclose(derivatives, expected.derivative(x.astype(np.float64)), rtol=1e-5, atol=1e-5)


def test_slope_of_tanh_of_a_large_cell_is_exact_in_short_storage_too():
    c = np.concatenate([np.linspace(-9, 9, 997), [0, 1e-4, -1e-4]]).astype(np.float32)
    values, slopes = emulated_gpu.tanh_of_cell(c)
    exact = np.tanh(c.astype(np.float64))
    np.testing.assert_allclose(values, exact, rtol=1e-3)
    np.testing.assert_allclose(slopes, 1 / np.cosh(c.astype(np.float64)) ** 2, rtol=1e-5)


def test_what_was_compiled_is_kept_on_disk_and_known_by_its_source():
    first = build.build(PLAIN, "sm_90a").code
    (entry,) = [path for path in (cache_dir() / "cuda").rglob("*") if path.is_file()]
    entry.write_bytes(first[:-1] + b"!")
    assert build.build(PLAIN, "sm_90a").code == first[:-1] + b"!"
    assert build.build(dataclasses.replace(PLAIN, rows=8), "sm_90a").code != first


def test_a_cache_that_cannot_be_written_is_done_without(monkeypatch, tmp_path):
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("CELLERATE_CACHE", str(tmp_path / "file"))
    assert build.build(PLAIN, "sm_90a").code.startswith(b"\x7fELF")


def test_source_holds_each_file_once_and_includes_nothing_of_ours():
    text = PLAIN.source
    assert text.count("struct Plan ") == text.count("struct Activation ") == 1
    assert re.findall(r'#include "(.*)"', text) == ["cuda_emulated.h"]


def test_no_compiler_is_an_error_that_says_what_to_install(monkeypatch):
    monkeypatch.setattr(build, "why_unavailable", lambda: "no compiler: pip install 'cellerate[cuda]'")
    with pytest.raises(BackendError, match=r"pip install 'cellerate\[cuda\]'"):
        build.build(PLAIN, "sm_90a")


@pytest.mark.parametrize("version", ["0.3.2", "0.7.0", "0.10.0.dev3+g1a2b"])
def test_cuda_core_that_is_too_old_is_missing_and_the_reason_says_what_to_install(monkeypatch, version):
    monkeypatch.setattr(build, "package_version", {"cuda-core": version}.get)
    # Where those of its modules are that the kernels use makes no difference.
    monkeypatch.setitem(sys.modules, "cuda.core", None)
    reason = build.why_unavailable.__wrapped__()
    assert reason.startswith(f"cuda-core {version} is installed; the kernels need 1.0 or later: pip install")
    assert reason.endswith("'cellerate[cuda]'")


@pytest.mark.parametrize("version", ["1.0", "1.0.0rc1", "1.2.2", "2.0.dev1", "10.1"])
def test_cuda_core_of_the_first_version_that_is_enough_or_later_is_taken(monkeypatch, version):
    monkeypatch.setattr(build, "package_version", {"cuda-core": version}.get)
    assert build.why_unavailable.__wrapped__() is None


@pytest.mark.parametrize(
    ("version", "called"), [(None, "a cuda-core without a version"), ("unknown", "cuda-core unknown")]
)
def test_cuda_core_whose_version_cannot_be_read_is_judged_by_what_it_has(monkeypatch, version, called):
    monkeypatch.setattr(build, "package_version", {"cuda-core": version}.get)
    assert build.why_unavailable.__wrapped__() is None
    utils = importlib.import_module("cuda.core.utils")
    # An older one has the module without the cache, and one older still has neither.
    for has in (types.ModuleType("cuda.core.utils"), None):
        monkeypatch.setitem(sys.modules, "cuda.core.utils", has)
        assert build.why_unavailable.__wrapped__().startswith(
            f"{called} is installed; the kernels need 1.0 or later"
        )
    monkeypatch.setitem(sys.modules, "cuda.core.utils", utils)
    assert build.why_unavailable.__wrapped__() is None


def test_cuda_core_that_the_package_asks_for_is_the_one_that_is_needed():
    project = tomllib.loads((Path(__file__).parents[3] / "pyproject.toml").read_text())
    needed = f"cuda-core>={build.CUDA_CORE[0]}.{build.CUDA_CORE[1]}"
    assert needed in project["project"]["optional-dependencies"]["cuda"]


def test_cuda_core_that_is_not_there_is_missing(monkeypatch):
    monkeypatch.setattr(build, "package_version", lambda name: None)
    monkeypatch.setitem(sys.modules, "cuda.core", None)
    assert "not installed (import of cuda.core halted" in build.why_unavailable.__wrapped__()


def test_architecture_without_clusters_is_refused_in_words():
    with pytest.raises(BackendError, match="could not be compiled"):
        build.build(PLAIN, "sm_80")


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"precision": "float64"}, "precision is 'float64'"),
        ({"units": 500}, "multiple of 32"),
        ({"units": 544}, "multiple of 32 up to 512, or of 64"),
        ({"units": 1088}, "up to 1024"),
        ({"rows": 12}, "expected one of 8, 16, 24, 32, 40"),
        ({"turns": 3}, "turns is 3; expected 1 or 2"),
        ({"activation": "maxout"}, "activation: expected one of .* got 'maxout'"),
    ],
)
def test_variant_that_is_none_raises_config_error(change, message):
    with pytest.raises(ConfigError, match=message):
        dataclasses.replace(PLAIN, **change)


@pytest.mark.parametrize(
    ("units", "padded"), [(1, 32), (32, 32), (33, 64), (512, 512), (513, 576), (1024, 1024)]
)
def test_units_are_padded_to_whole_blocks(units, padded):
    assert padded_units(units) == padded


def test_rows_are_those_whose_memory_a_block_has():
    dropped = Variant("forward", "bfloat16", 1024, 8, dropped=True)
    assert [one.rows for one in fitting(dropped)] == [8, 16]
    assert [one.rows for one in fitting(PLAIN)] == [8, 16, 24, 32, 40]
    large = Variant("backward", "bfloat16", 1024, 8)
    assert [one.rows for one in fitting(large)] == [8, 16]
    assert all(one.shared_bytes <= SHARED_BYTES for one in fitting(dropped) + fitting(PLAIN) + fitting(large))
    # There is memory for 32 rows, but there are too few registers.
    smaller = dataclasses.replace(large, units=768)
    assert [one.rows for one in fitting(smaller)] == [8, 16, 24]
    assert dataclasses.replace(smaller, rows=32).shared_bytes <= SHARED_BYTES


def test_blocks_exchange_through_memory_what_is_much():
    for rows, units, precision, through in (
        (8, 512, "bfloat16", False), (16, 512, "bfloat16", True), (16, 256, "bfloat16", False),
        (8, 1024, "bfloat16", True), (8, 256, "float32", True), (8, 128, "float32", False), (40, 128, "tf32", True),
    ):  # fmt: skip
        variant = Variant("forward", precision, units, rows)
        assert variant.through_memory is through
        # What the blocks send in two steps: float32 in two parts.
        numbers = 2 * 3 * rows * units * (2 if precision == "float32" else 1)
        assert variant.exchanged(3 * rows - 1) == numbers * through
        # Backward, each block gets sums of its own.
        assert dataclasses.replace(variant, direction="backward").exchanged(rows) == 0
    # A mask for each gate multiplies h before it is split.
    assert Variant("forward", "float32", 128, 32, dropped=True).exchanged(32) == 2 * 32 * 128


def test_weights_lie_as_near_as_there_is_room():
    assert dataclasses.astuple(PLAIN.tiers) == (32, 0, 0)
    for rows in ROWS:
        variant = Variant("forward", "bfloat16", 1024, rows)
        tiers = variant.tiers
        assert 9 <= tiers.registers <= 16
        # Another product of 512 threads would not fit.
        assert variant.shared_bytes + 16 * 512 > SHARED_BYTES
        assert tiers.registers + tiers.shared + tiers.streamed == 64


@pytest.mark.parametrize(
    ("batch", "rows"),
    [
        *((1, 8), (56, 8), (57, 16), (112, 16), (113, 24), (128, 24), (168, 24), (169, 32), (224, 32)),
        *((225, 40), (256, 40), (280, 40), (281, 24), (448, 32), (449, 40), (560, 40), (561, 32)),
    ],
)
def test_fewest_waves_and_of_those_the_fewest_rows_are_chosen(batch, rows):
    chosen = choose(PLAIN, batch, lambda variant: 7, lambda variant: 1.0)
    assert chosen.rows == rows
    assert clusters(rows, batch) * rows >= batch > (clusters(rows, batch) - 1) * rows
