"""The addresses that a server can listen on, and the refusals of all others."""

import pytest

from cellerate.errors import ConfigError, OutputError
from cellerate.web import bound_socket


@pytest.mark.parametrize("host", ["\udcff", "a\0b", "a.\ud800"], ids=ascii)
def test_host_that_cannot_be_encoded_is_refused_by_the_name_of_the_argument(host: str) -> None:
    with pytest.raises(ConfigError, match=r"^host must be an address of this machine or its name, not "):
        bound_socket(host, 0)


@pytest.mark.parametrize("host", ["a..b", "a" * 80, "256.0.0.1"])
def test_host_that_is_not_here_is_refused_with_its_name(host: str) -> None:
    with pytest.raises(OutputError) as refused:
        bound_socket(host, 0)
    assert str(refused.value).startswith(f"the server cannot listen on {host}:0: ")
