"""The numbers in a call are places in the core's own lists, wherever a name stands there."""

import pytest

from cellerate.activations import KERNEL_ACTIVATIONS, PARAMETERS, written
from cellerate.kernels import codes, native
from cellerate.kernels.lstm import cpu
from cellerate.kernels.lstm.spec import LstmOptions
from cellerate.program import MASKED_OUTPUTS, OPERATIONS, PRECISIONS
from cellerate.program.elementwise import FUNCTIONS

GIVEN = {"threshold": {"threshold": 0.5, "default_value": -2.0}}


@pytest.mark.parametrize("name", KERNEL_ACTIVATIONS)
def test_activation_is_found_by_its_name(name: str) -> None:
    activation = written(name, GIVEN.get(name, {}))
    code, *bits = codes.of_activation(activation)
    assert native.core().ACTIVATIONS[code] == name
    assert len(bits) == max(map(len, PARAMETERS.values()))
    assert codes.activation_of((code, *bits)) == activation


@pytest.mark.parametrize("name", MASKED_OUTPUTS)
def test_masked_output_is_found_by_its_name(name: str) -> None:
    code = codes.of_masked_output(name)
    assert native.core().MASKED_OUTPUTS[code] == codes.masked_output_of(code) == name


def test_core_with_its_names_in_another_order_is_understood(monkeypatch: pytest.MonkeyPatch) -> None:
    core = native.core()
    lists = {name: getattr(core, name)[::-1] for name in ("ACTIVATIONS", "MASKED_OUTPUTS")}
    monkeypatch.setattr(native, "own_list", lambda name, otherwise: lists[name])
    options = LstmOptions("leaky_relu(negative_slope=0.05)", "hard_sigmoid", True, "zero")
    given = cpu.codes(options, return_sequences=False)
    assert given[0] == len(core.ACTIVATIONS) - 1 - core.ACTIVATIONS.index("leaky_relu")
    assert given[-3:] == (0, 1, 0)
    assert cpu.options_of(given) == (options, False)


def test_codes_are_there_without_the_core(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(native, "why_unavailable", lambda: "the test wants none")
    options = LstmOptions("gelu", "sigmoid", False, "previous_state")
    assert cpu.options_of(cpu.codes(options, return_sequences=True)) == (options, True)


def test_rows_of_the_core_are_those_of_the_language() -> None:
    for op, (inputs, arrays, number, whole, shapes) in native.core().PROGRAM_OPERATIONS.items():
        row = OPERATIONS[op]
        assert sorted(inputs) == sorted(row.inputs), op
        known = {name.removesuffix("?") for name in row.arrays}
        # A runtime transposes its table, once.
        known = {"kernel"} if op == "unembedding" else known
        assert {name for name in arrays if name is not None} == known, op
        assert number is None or number in row.options, op
        assert set(whole) <= row.options.keys(), op
        assert shapes in {
            *("any", "alike", "time", "features", "positions"),
            *("stretched", "joined", "either", "swapped", "flipped"),
        }, op


def test_functions_of_the_core_are_those_of_the_language() -> None:
    assert tuple(FUNCTIONS) == native.core().FUNCTIONS


def node(op: str = "input") -> tuple[object, ...]:
    linear = codes.of_activation("linear")
    kinds = (linear, linear, "", "zero")
    return op, [], (None, None, None), kinds, (False, True, False, False), 0.0, []


def test_core_refuses_names_that_it_does_not_know() -> None:
    core = native.core()
    for precision in PRECISIONS:
        assert core.CompiledProgram([node()], [0], precision, 1 << 20).packed_bytes > 0
    with pytest.raises(ValueError, match='there is no operation "evil"'):
        core.CompiledProgram([node("evil")], [0], "float32", 1 << 20)
    expected = "precision: expected one of float32, bfloat16, int8, int4; got float16"
    with pytest.raises(ValueError, match=expected):
        core.CompiledProgram([node()], [0], "float16", 1 << 20)
    with pytest.raises(ValueError, match=expected):
        core.measure_peak("float16", 1)
    with pytest.raises(ValueError, match=expected):
        core.TextProgram([node()], [0], "float16", 1)
    with pytest.raises(ValueError, match="a text program needs ids first"):
        core.TextProgram([node()], [0], "float32", 1)
