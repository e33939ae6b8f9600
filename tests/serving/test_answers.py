"""What answers and requests have in common."""

import asyncio
import threading

import pytest

from cellerate.serving.answers import aside


@pytest.mark.parametrize(("characters", "here"), [(0, True), (100, True), (1_000_000, False)])
def test_a_call_with_many_characters_runs_aside_and_others_go_on(characters, here):
    thread = threading.get_ident()

    def call():
        # The loop runs the other coroutine only if this call does not hold it.
        return threading.get_ident(), begun.wait(0 if here else 30)

    async def other():
        begun.set()

    async def both():
        found, _ = await asyncio.gather(aside(call, characters), other())
        return found

    begun = threading.Event()
    ran_on, went_on = asyncio.run(both())
    assert ((ran_on == thread), went_on) == (here, not here)


def test_an_error_of_a_call_aside_reaches_the_request():
    def call():
        raise LookupError("no such model")

    with pytest.raises(LookupError, match="no such model"):
        asyncio.run(aside(call, 1_000_000))
