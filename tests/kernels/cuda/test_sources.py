"""Python reads structures and numbers from the CUDA sources, so that both sides cannot differ."""

import ctypes
from pathlib import Path

import pytest

from cellerate.kernels.cuda import sources
from cellerate.kernels.decoder.cuda.records import GenerateArguments
from cellerate.kernels.lstm.cuda.arguments import BackwardArguments, ForwardArguments, masked_output_code
from cellerate.program import MASKED_OUTPUTS

SOURCE = """
enum class Way : int { kFirst, kNotThis };
struct Others {
  int none;
};
template <class Number>
struct Given {
  int batch, steps;           // B; and T
  Way way;
  const Number* x;            // (B, T), or null; never both
  const unsigned char* mask;  // only with a mask
  float* y;
};
"""


@pytest.fixture
def planted(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (tmp_path / "planted.cuh").write_text(SOURCE)
    monkeypatch.setattr(sources, "_files", lambda: {"planted.cuh": tmp_path / "planted.cuh"})


def test_fields_are_those_of_the_structure(planted: None) -> None:
    assert sources.fields("planted.cuh", "Given") == [
        *((name, ctypes.c_int) for name in ("batch", "steps", "way")),
        *((name, ctypes.c_void_p) for name in ("x", "mask", "y")),
    ]


def test_number_is_that_of_the_name(planted: None) -> None:
    assert [sources.code("planted.cuh", "Way", name) for name in ("first", "not_this")] == [0, 1]
    with pytest.raises(ValueError, match="kSecond"):
        sources.code("planted.cuh", "Way", "second")


@pytest.mark.parametrize("structure", [ForwardArguments, BackwardArguments, GenerateArguments])
def test_arguments_begin_with_the_batch_and_have_addresses_behind_their_numbers(structure: type) -> None:
    kinds = [kind for _, kind in structure._fields_]
    numbers = kinds.count(ctypes.c_int)
    assert structure._fields_[0] == ("batch", ctypes.c_int)
    assert kinds == [ctypes.c_int] * numbers + [ctypes.c_void_p] * (len(kinds) - numbers)
    assert len(kinds) > 15


def test_masked_outputs_have_a_number_each() -> None:
    assert sorted(map(masked_output_code, MASKED_OUTPUTS)) == [0, 1, 2]
