import pytest

from cellerate.errors import ConfigError
from cellerate.optimization.sweep.axes import AXES, axes_of, check_known, written
from cellerate.tasks.settings import RECORDS

BY_NAME = {axis.name: axis for axis in AXES}


@pytest.mark.parametrize(
    ("name", "given", "values"),
    [
        ("batch_size", "32,64", (32, 64)),
        ("batch_size", "1..8", (1, 2, 4, 8)),
        ("batch_size", "10..100", (10, 20, 40, 80, 100)),
        ("batch_size", "1..4, 64", (1, 2, 4, 64)),
        ("batch_size", 16, (16,)),
        ("units", [32, "64..128"], (32, 64, 128)),
        ("units", "32,32", (32,)),
        ("learning_rate", "1e-4..1e-2", (1e-4, 3e-4, 1e-3, 3e-3, 1e-2)),
        ("learning_rate", 0.001, (0.001,)),
        ("dropout", "0..0.25", (0.0, 0.1, 0.2, 0.25)),
        ("layer_norm", "both", (False, True)),
        ("layer_norm", "on", (True,)),
        ("layer_norm", [False, True], (False, True)),
        ("optimizer", "adam,sgd", ("adam", "sgd")),
        ("cell", "lstm,gru", ("lstm", "gru")),
        ("device", "cpu,gpu", ("cpu", "gpu")),
    ],
)
def test_values_are_read_as_lists_ranges_and_words(name, given, values):
    assert BY_NAME[name].read(given, "text") == values


@pytest.mark.parametrize(
    ("name", "given", "reason"),
    [
        ("batch_size", "4..1", "must rise"),
        ("batch_size", "8..8", "must rise"),
        ("batch_size", "a..b", "whole numbers of at least 1, not the range 'a..b'"),
        ("batch_size", "0..8", "whole numbers of at least 1, not the range '0..8'"),
        ("batch_size", "1..2..4", "whole numbers"),
        ("batch_size", "", "empty"),
        ("batch_size", "8,,16", "empty"),
        ("batch_size", [], "empty"),
        ("batch_size", 2.5, "whole numbers"),
        ("batch_size", True, "whole numbers"),
        ("learning_rate", "nan", "above 0"),
        ("learning_rate", "0..1", "above 0"),
        ("learning_rate", "1e-300..1e300", "narrower"),
        ("dropout", "1", "below 1"),
        ("layer_norm", "maybe", "on, off or both"),
        ("optimizer", "adamm", "one of adam, adamw"),
        ("cell", "foo", "one of lstm, gru, simple_rnn, not 'foo'"),
        ("precision", "auto", "measures both itself"),
        ("device", "tpu", "one of auto, cpu, gpu"),
    ],
)
def test_invalid_values_are_refused_with_a_clear_error(name, given, reason):
    with pytest.raises(ConfigError, match=reason):
        BY_NAME[name].read(given, "text")


@pytest.mark.parametrize("task", RECORDS)
def test_every_axis_of_a_task_has_help_and_a_valid_default(task):
    for axis in axes_of(task).values():
        assert axis.help(task).endswith(".")
        assert axis.read(axis.default(task), task) == (axis.default(task),)
        if axis.searched:
            assert len(axis.read(axis.searched, task)) > 1


def test_every_axis_belongs_to_a_task():
    assert {name for task in RECORDS for name in axes_of(task)} == {axis.name for axis in AXES}


def test_unknown_setting_is_refused_with_the_nearest_known_one():
    with pytest.raises(ConfigError, match="did you mean 'batch_size'"):
        check_known("text", ["batchsize"])
    check_known("series", ["target", "device", "decimal"])


def test_values_are_formatted_as_the_user_types_them():
    assert [written(one) for one in (True, False, 0.0003, 128, "adam")] == [
        "on",
        "off",
        "0.0003",
        "128",
        "adam",
    ]
