"""Stock Keras on each backend as a peer of text generation, and the timing and checking of all peers' calls.

Each peer runs as its own users would run it. The race is in `race`, and the other runtimes are in `runtimes`.
"""

import functools
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

EMBEDDING, TEMPERATURE = 256, 0.8
CHARACTERS = "\n" + "".join(map(chr, range(32, 127)))
V = len(CHARACTERS)
# The characters of a call of a compiled loop, which fixes its length.
CHUNK = 500
# The characters of a text that is judged in one call.
TEXT = 1000

# Generates about the given number of characters; returns the seconds of each call and the characters of one call.
Job = Callable[[int], tuple[list[float], int]]


def keras_jobs(folder: Path, backend: str) -> tuple[dict[str, Job], dict[str, Any]]:
    """Stock Keras: the loops of tutorials, and the fastest known loops."""
    import keras

    weights = keras.saving.load_model(folder / "model.keras").get_weights()
    truth = np.load(folder / "truth.npz")
    units = weights[2].shape[0]
    layers = keras.layers
    ids, memory = keras.Input(batch_shape=(1, 1), dtype="int32"), layers.LSTM(units, stateful=True)
    stateful = keras.Sequential([ids, layers.Embedding(V, EMBEDDING), memory, layers.Dense(V)])
    explicit = _explicit(units, "float32")
    stateful.set_weights(weights)
    explicit.set_weights(weights)
    zeros = [np.zeros((1, units), np.float32)] * 2

    compiled = {"tensorflow": _tensorflow, "jax": _jax, "torch": _torch}[backend]
    steps, loop = compiled(explicit)
    ways: dict[str, tuple[Callable[..., Any], list[Any]]] = {
        name: (step, zeros) for name, step in steps.items()
    }
    if backend == "jax":
        # On JAX Keras 3.15 loses a stateful layer's state between calls, so the state is an input and an output.
        ways["predict"] = lambda *given: explicit.predict(list(given), verbose=0), zeros
        ways["predict_on_batch"] = lambda *given: explicit.predict_on_batch(list(given)), zeros
    else:
        ways["predict"] = lambda ids: [stateful.predict(ids, verbose=0)], []
        ways["predict_on_batch"] = lambda ids: [stateful.predict_on_batch(ids)], []
    jobs: dict[str, Job] = {}
    errors: dict[str, float] = {}
    for name, (way, state) in ways.items():
        memory.reset_states()
        one = functools.partial(_with_column, way)
        errors[name] = error_of(np.asarray(read(one, truth["ids"], state)[0])[0], truth["logits"])
        jobs[name] = functools.partial(one_by_one, one, state, True)
        if name == "step":
            errors["logits"] = errors[name]
            jobs["logits"] = functools.partial(one_by_one, one, state, False)
    loops = {"loop": (loop, steps["step"])}
    if loop is not None:
        half = _explicit(units, "mixed_bfloat16")
        half.set_weights(weights)
        half_steps, half_loop = compiled(half)
        loops["loop bfloat16"] = half_loop, half_steps["step"]
        logits = read(functools.partial(_with_column, half_steps["step"]), truth["ids"], zeros)[0]
        half_error = error_of(np.asarray(logits, np.float32)[0], truth["logits"])
    for name, (drawing, step) in loops.items():
        if drawing is None:
            continue
        error = error_of_loop(drawing, functools.partial(_with_column, step), zeros)
        if name == "loop":
            errors[name] = error
        else:
            # The step is checked as well: it compiles separately, so it rounds differently.
            errors["loop mixed_bfloat16"] = float(np.max([error, half_error]))
        jobs[name] = clocked(functools.partial(in_chunks, drawing, zeros))
    if backend == "torch":
        jobs["drawn"], errors["drawn"] = _torch_drawn(explicit, zeros, steps["step"])
    return jobs, {"errors": errors, "settings": SETTINGS[backend], "left_out": LEFT_OUT.get(backend, {})}


# The loop of each backend, in words.
SETTINGS = {
    "tensorflow": "step and loop: tf.function(jit_compile=True); loop: a tf.while_loop of 500 characters that draws",
    "jax": "step and loop: jax.jit; loop: a lax.scan of 500 characters that draws",
    "torch": "step: torch.compile, one thread, which is faster here; drawn: the draw compiled in, a call a character",
}
LEFT_OUT = {
    "torch": {"loop": "torch.compile unrolls a Python loop: no loop of 500 steps in one compiled call"}
}


def _explicit(units: int, policy: str) -> Any:
    """A step with the state as input and output: ids (1, 1), h and c (1, H) → logits, h, c."""
    import keras

    layers = keras.layers
    ids = keras.Input(batch_shape=(1, 1), dtype="int32")
    h, c = keras.Input(batch_shape=(1, units)), keras.Input(batch_shape=(1, units))
    embedded = layers.Embedding(V, EMBEDDING, dtype=policy)(ids)
    embedded = layers.Reshape((EMBEDDING,), dtype=policy)(embedded)
    output, new = layers.LSTMCell(units, dtype=policy)(embedded, [h, c])
    logits = layers.Dense(V, dtype=policy)(output)
    left = [logits, *new]
    if policy != "float32":
        # A loop keeps the types of its inputs: float32, which holds every bfloat16.
        left = [layers.Activation("linear", dtype="float32")(one) for one in left]
    return keras.Model([ids, h, c], left)


def _with_column(way: Callable[..., Any], ids: np.ndarray, *state: Any) -> Any:
    return way(ids[:, None], *state)


def in_chunks(loop: Callable[..., Any], state: list[Any], count: int) -> int:
    """Draw at least `count` characters, `CHUNK` in each call of `loop`."""
    calls = -(-count // CHUNK)
    for _ in range(calls):
        drawn, *state = loop(*state)
        np.asarray(drawn)
    return calls * CHUNK


def _torch_drawn(model: Any, zeros: list[Any], step: Callable[..., Any]) -> tuple[Job, float]:
    """A compiled step that also draws; torch does not compile more of the loop."""
    import torch

    def drawn(ids: Any, h: Any, c: Any) -> Any:
        logits, h, c = model([ids, h, c], training=False)
        noise = -torch.log(-torch.log(torch.rand_like(logits).clamp_min(1e-7)))
        return (logits / TEMPERATURE + noise).argmax(-1, keepdim=True).int(), h, c

    compiled = torch.compile(drawn)

    def run(count: int) -> list[Any]:
        given = [torch.zeros((1, 1), dtype=torch.int32), *map(torch.as_tensor, zeros)]
        ids = []
        for _ in range(count):
            given = list(compiled(*given))
            ids.append(int(given[0]))
        return [ids, *given[1:]]

    error = error_of_loop(lambda *_: run(CHUNK), functools.partial(_with_column, step), zeros)
    return clocked(lambda count: len(run(count)[0])), error


def _jax(model: Any) -> tuple[dict[str, Callable[..., Any]], Callable[..., Any] | None]:
    import jax
    import jax.numpy as jnp

    # Copies, because `predict` returns the model's own arrays.
    trainable = [jnp.array(variable.value) for variable in model.trainable_variables]
    rest = [jnp.array(variable.value) for variable in model.non_trainable_variables]
    seeds = iter(range(2**31))

    def step(ids: Any, h: Any, c: Any) -> Any:
        return model.stateless_call(trainable, rest, [ids, h, c], training=False)[0]

    def loop(h: Any, c: Any, seed: Any) -> Any:
        def body(carried: Any, key: Any) -> Any:
            logits, h, c = step(*carried)
            drawn = jax.random.categorical(key, logits / TEMPERATURE).astype(jnp.int32)
            return (drawn[:, None], h, c), drawn[0]

        keys = jax.random.split(jax.random.key(seed), CHUNK)
        (_, h, c), ids = jax.lax.scan(body, (jnp.zeros((1, 1), jnp.int32), h, c), keys)
        return ids, h, c

    compiled = jax.jit(loop)
    return {"step": jax.jit(step)}, lambda h, c: compiled(h, c, next(seeds))


def _tensorflow(model: Any) -> tuple[dict[str, Callable[..., Any]], Callable[..., Any] | None]:
    import tensorflow as tf

    def step(ids: Any, h: Any, c: Any) -> Any:
        return model([ids, h, c], training=False)

    def loop(h: Any, c: Any) -> Any:
        ids, drawn = tf.zeros((1, 1), tf.int32), tf.TensorArray(tf.int32, CHUNK)
        for place in tf.range(CHUNK):
            logits, h, c = step(ids, h, c)
            ids = tf.random.categorical(logits / TEMPERATURE, 1, dtype=tf.int32)
            drawn = drawn.write(place, ids[0, 0])
        return drawn.stack(), h, c

    compiled = tf.function(step, jit_compile=True)
    whole = tf.function(loop, jit_compile=True)
    # A tf.function would compile the value of a NumPy array into its graph.
    tensors = functools.partial(map, tf.convert_to_tensor)
    return {"step": lambda *given: compiled(*tensors(given))}, lambda *given: whole(*tensors(given))


def _torch(model: Any) -> tuple[dict[str, Callable[..., Any]], Callable[..., Any] | None]:
    import torch

    torch.set_grad_enabled(False)
    # One row is too little work for two threads: a second thread slows down all of these.
    torch.set_num_threads(1)

    def step(ids: Any, h: Any, c: Any) -> Any:
        return model([ids, h, c], training=False)

    compiled = torch.compile(step)
    tensors = functools.partial(map, torch.as_tensor)
    ways = {"eager": lambda *given: step(*tensors(given)), "step": lambda *given: compiled(*tensors(given))}
    return ways, None


def draw(logits: np.ndarray, random: np.random.Generator) -> np.ndarray:
    """Draw an id (B,) from each row of logits (B, V), as a program with NumPy does."""
    likelihoods = np.exp((logits - logits.max(axis=-1, keepdims=True)) / TEMPERATURE).cumsum(axis=-1)
    return (likelihoods < random.random((len(logits), 1)) * likelihoods[:, -1:]).sum(axis=-1, dtype=np.int32)


def one_by_one(
    step: Callable[..., Any], state: list[Any], drawing: bool, count: int
) -> tuple[list[float], int]:
    """Time `count` calls of a step from Python, with or without the draw of the next character.

    Args:
        step: ids (1,) int32 and the state → logits (1, V) and the new state.
        state: The state before the first call.
        drawing: Whether NumPy draws the next id from the logits; otherwise it is always 0.
        count: The number of calls.
    """
    random, ids = np.random.default_rng(1), np.zeros(1, np.int32)
    seconds: list[float] = []
    for _ in range(count):
        start = time.perf_counter()
        logits, *state = step(ids, *state)
        logits = np.asarray(logits)
        if drawing:
            ids = draw(logits, random)
        seconds.append(time.perf_counter() - start)
    return seconds, 1


def read(step: Callable[..., Any], ids: Any, state: list[Any]) -> list[Any]:
    """The logits and the state after the last of `ids`."""
    logits: Any = None
    for number in ids:
        logits, *state = step(np.array([number], np.int32), *state)
    return [logits, *state]


def error_of_loop(loop: Callable[..., Any], step: Callable[..., Any], state: list[Any]) -> float:
    """The error of a loop: reading its ids again step by step must give the same state, and the ids must differ.

    Returns:
        The error of h; infinity if the ids cannot be draws.
    """
    drawn, h, _ = loop(*state)
    ids = np.asarray(drawn).reshape(-1)
    if len(ids) != CHUNK or len(set(ids.tolist())) < V // 4 or not (0 <= ids.min() <= ids.max() < V):
        return float("inf")
    return error_of(np.asarray(h), np.asarray(read(step, [0, *ids[:-1]], state)[1]))


def clocked(work: Callable[[int], int]) -> Job:
    """A job from a function that makes characters and returns their number."""

    def job(count: int) -> tuple[list[float], int]:
        start = time.perf_counter()
        made = work(count)
        return [time.perf_counter() - start], made

    return job


def error_of(found: np.ndarray, expected: np.ndarray) -> float:
    """The error relative to the root mean square of the expected values."""
    return float(np.linalg.norm(found - expected) / np.linalg.norm(expected))
