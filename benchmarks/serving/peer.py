"""The peer of the serving case: a server with one Keras `predict_on_batch` a character, on the same framework.

`python -m benchmarks.serving.peer model.keras`. It answers one request after another, as such servers do: the
model keeps one state. It runs on starlette and uvicorn with the same parser and loop as ours.
"""

import asyncio
import json
import sys
from collections.abc import AsyncIterator
from typing import Any

import keras
import numpy as np
import uvicorn
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import StreamingResponse
from starlette.routing import Route

from benchmarks.generation.peers import CHARACTERS


def stateful(path: str) -> Any:
    """The stateful model for one character at a time."""
    model = keras.saving.load_model(path)
    ids = keras.Input((1,), batch_size=1, dtype="int32")
    x = ids
    for layer in model.layers:
        if isinstance(layer, keras.layers.LSTM):
            config = layer.get_config() | {"stateful": True}
            x = keras.layers.LSTM.from_config(config)(x)
        else:
            x = type(layer).from_config(layer.get_config())(x)
    copy = keras.Model(ids, x)
    copy.set_weights(model.get_weights())
    return copy


def serve(path: str) -> None:
    """Serve until it is ended."""
    model, turn = stateful(path), asyncio.Lock()

    def step(number: int) -> np.ndarray:
        return np.asarray(model.predict_on_batch(np.array([[number]], np.int32)))[0, -1]

    async def complete(request: Request) -> StreamingResponse:
        asked = await request.json()
        return StreamingResponse(drawn(asked), media_type="text/event-stream")

    async def drawn(asked: dict[str, Any]) -> AsyncIterator[str]:
        random = np.random.default_rng(asked["seed"])
        async with turn:
            for layer in model.layers:
                if isinstance(layer, keras.layers.LSTM):
                    layer.reset_state()
            for character in asked["prompt"]:
                logits = await asyncio.to_thread(step, CHARACTERS.index(character))
            for _ in range(asked["max_tokens"]):
                number = int((logits + random.gumbel(size=len(logits))).argmax())
                part = {"choices": [{"text": CHARACTERS[number]}]}
                yield f"data: {json.dumps(part)}\n\n"
                logits = await asyncio.to_thread(step, number)
        yield "data: [DONE]\n\n"

    step(0)
    app = Starlette(routes=[Route("/v1/completions", complete, methods=["POST"])])
    config = uvicorn.Config(app, port=0, http="httptools", loop="uvloop", access_log=False)
    uvicorn.Server(config).run()


if __name__ == "__main__":
    serve(sys.argv[1])
