import pytest

from cellerate.distributed.group import Membership, check_backend, own_place
from cellerate.errors import BackendError, ConfigError

WHOLE = {"RANK": "1", "WORLD_SIZE": "3", "MASTER_ADDR": "here", "MASTER_PORT": "99"}


def test_place_survives_the_environment():
    place = Membership(1, 3, "here:99")
    assert place.environment() == WHOLE
    assert own_place(WHOLE) == place


@pytest.mark.parametrize("environment", [{}, {"WORLD_SIZE": "1"}, {"WORLD_SIZE": "1", "RANK": "0"}])
def test_single_process_has_no_place(environment):
    assert own_place(environment) is None


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"RANK": None}, "RANK is not set"),
        ({"MASTER_ADDR": None, "MASTER_PORT": None}, "MASTER_ADDR, MASTER_PORT is not set"),
        ({"RANK": "3"}, "from 0 to 2"),
        ({"RANK": "-1"}, "from 0 to 2"),
        ({"RANK": "one"}, "RANK is 'one'"),
        ({"WORLD_SIZE": "many"}, "WORLD_SIZE is 'many'"),
        ({"MASTER_PORT": ""}, "MASTER_PORT is ''"),
    ],
)
def test_environment_that_is_wrong_is_refused(change, words):
    environment = {name: value for name, value in {**WHOLE, **change}.items() if value is not None}
    with pytest.raises(ConfigError, match=words):
        own_place(environment)


def test_tensorflow_is_refused_with_the_two_ways_that_work():
    with pytest.raises(BackendError, match="backend='jax' or 'torch'"):
        check_backend("tensorflow")
    check_backend("jax")
    check_backend("torch")
