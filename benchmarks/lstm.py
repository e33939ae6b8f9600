"""The character-model training step: Keras's own code, Cellerate's kernels, torch.nn.LSTM, each as fast as it goes.

A module of its own because a process holds one Keras backend: each contestant is this file run with
`--contestant`, told over its standard input how many steps to run next. So the contestants take turns in one
run, and a drift of the machine's speed hits all alike. float32 and bfloat16 are a race each: ratios are quoted within
a precision.

The model: embedding 256, one LSTM, a dense layer to V characters; 128 windows of 100 characters of a real book,
Adam 0.001, each gradient clipped to a norm of 1. All contestants start from the same weights and see the same batches,
one a call (`steps_per_execution` 1), and each step ends with its loss. Before any is timed, its first losses are
compared with those in float64: torch's, and of stock Keras on TensorFlow, which takes other steps, its own.
"""

import argparse
import functools
import json
import resource
import sys
import time
import traceback
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

from cellerate.measure import as_timing
from contest import ALLOCATOR_WORDS, Process, RefusedError, allocator_found, same_allocator, two_at_a_time

BATCH, LENGTH, EMBEDDING = 128, 100, 256
LEARNING_RATE, CLIPNORM, EPSILON = 1e-3, 1.0, 1e-7
CHECKED_STEPS = 3
# How far the first losses may be from those of float64, as a share: of float32 what rounding can add up to after some
# steps of Adam, which divides by small numbers; of bfloat16 one rounding of a number.
BOUNDS = {"float32": 1e-4, "mixed_bfloat16": 2.0**-8}
# Dropout draws other masks everywhere, so that only the size of the first loss can be told.
RANDOM_BOUND = 0.02
# What a contestant may take to start and to compile, two of them at a time.
COMPILE_LIMIT_S = 60.0
QUICK = {"units": 32, "batch": 4, "length": 8}
Settings = dict[str, Any]
# What a layer is asked for beyond the plain one; "random mask" leaves out a third of the steps.
VARIANTS: dict[str, dict[str, Any]] = {
    "plain": {},
    "random mask": {},
    "relu": {"activation": "relu"},
    "recurrent dropout": {"recurrent_dropout": 0.2},
    "bidirectional": {},
    "no bias": {"use_bias": False},
}


class Contestant:
    """A process that trains one model and says how long each step took."""

    def __init__(self, book: Path, **settings: Any) -> None:
        self.settings = settings
        environment = {"KERAS_BACKEND": settings["backend"]}
        if settings.get("device") == "cpu":
            environment["CUDA_VISIBLE_DEVICES"] = ""
        command = [sys.executable, __file__, "--contestant", json.dumps(settings), str(book)]
        self._process = Process(command, str(settings), settings["allocator"], **environment)
        self.seconds: dict[int, list[float]] = {}
        self.losses: list[float] = []
        self.peak_bytes = 0
        self.ran: dict[str, str | None] = {}
        self.allocator = ""

    def steps(
        self, count: int, *, timed: bool = True, batch: int | None = None, limit_s: float | None = None
    ) -> list[float]:
        """Runs so many steps, of another batch than that of its settings if one is given, and keeps their times.

        Returns:
            Their losses.

        Raises:
            RefusedError: They take longer than `limit_s`.
        """
        batch = batch or self.settings["batch"]
        done = self._process.ask([count, batch], limit_s, "compile")
        if timed:
            # The first step of a `fit` also sets it up.
            self.seconds.setdefault(batch, []).extend(done["seconds"][1:])
        self.losses += done["losses"]
        self.peak_bytes = done["peak_bytes"]
        self.ran, self.allocator = done["ran"], done["allocator"]
        return list(done["losses"])

    def record(self, batch: int, error: float) -> dict[str, Any]:
        """What a result file keeps of its steps of one batch."""
        timing = as_timing(self.seconds[batch])
        return {
            **self.settings,
            "batch": batch,
            "settings": in_words(self.settings),
            **timing.summary(),
            "p99_s": timing.percentile_s(0.99),
            "characters_per_s": batch * self.settings["length"] / timing.median_s,
            "error_of_losses": error,
            "allocator_found": self.allocator,
            "peak_bytes": self.peak_bytes,
            "ran": self.ran,
        }

    def close(self) -> None:
        """Ends the process."""
        self._process.close()


def in_words(settings: Settings) -> str:
    """What a contestant is given, beyond its precision."""
    words = [ALLOCATOR_WORDS[settings["allocator"]]]
    if settings["implementation"] == "torch.nn.LSTM":
        words.append("fused Adam")
    if settings["jit_compile"] is True:
        words.append("torch.compile" if settings["implementation"] == "torch.nn.LSTM" else "jit_compile=True")
    if settings["unroll"]:
        words.append("unroll=True")
    return ", ".join([*words, "steps_per_execution 1"])


def contestant(book: Path, settings: Settings) -> None:
    """The other end: reads step counts, writes times and losses."""
    text = book.read_text(encoding="utf-8-sig").replace("\r\n", "\n")
    characters = sorted(set(text))
    numbers = {character: number for number, character in enumerate(characters)}
    import numpy as np

    ids = np.array([numbers[character] for character in text], np.int32)
    if settings["allocator"] == "stock" and settings["implementation"].startswith("cellerate"):
        _leave_the_allocator()
    train = _torch_loop if settings["implementation"] == "torch.nn.LSTM" else _keras_fit
    try:
        run, ran = train(len(characters), settings)
        _serve(ids, settings, run, ran)
    except Exception as error:
        # The record keeps it: what cannot run is never dropped silently.
        traceback.print_exc()
        words = (str(error).strip().splitlines() or [""])[0]
        print(json.dumps({"refused": f"{type(error).__name__}: {words[:200]}"}), flush=True)


def _serve(ids: Any, settings: Settings, run: Any, ran: Any) -> None:
    import numpy as np

    starts = np.random.default_rng(0)
    for line in sys.stdin:
        count, batch = json.loads(line)
        seconds, losses = run([_batch(ids, batch, settings["length"], starts) for _ in range(count)])
        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
        done = {"seconds": seconds, "losses": losses, "peak_bytes": peak, "ran": ran()}
        print(json.dumps(done | {"allocator": allocator_found()}), flush=True)


def _leave_the_allocator() -> None:
    """Has Cellerate leave the allocator as it comes, which no user can: so that it is seen what the setting brings."""
    import importlib

    for name in ("machine.environment", "layers.accelerate"):
        importlib.import_module(f"cellerate.{name}").keep_freed_memory = lambda: False


def initial_weight(name: str, shape: Sequence[int], random: Any) -> Any:
    """A weight as Keras would draw it, the same on every backend.

    Args:
        name: Keras's: "embeddings", "kernel", "recurrent_kernel" or "bias".
        shape: Of the weight; a bias as long as four gates of a layer begins with its forget gate at 1.
        random: NumPy's generator.
    """
    import numpy as np

    if name == "embeddings":
        return random.uniform(-0.05, 0.05, shape)
    if name == "recurrent_kernel":
        return np.linalg.qr(random.standard_normal(shape[::-1]))[0].T
    if name == "kernel":
        limit = np.sqrt(6 / sum(shape))
        return random.uniform(-limit, limit, shape)
    return np.zeros(shape)


def plain_weights(vocabulary: int, units: int) -> list[Any]:
    """The weights of the plain model, in Keras's order."""
    import numpy as np

    random = np.random.default_rng(0)
    shapes = {
        "embeddings": [(vocabulary, EMBEDDING)],
        "kernel": [(EMBEDDING, 4 * units)],
        "recurrent_kernel": [(units, 4 * units)],
        "bias": [(4 * units,)],
    }
    lstm = [initial_weight(name, shape, random) for name, (shape,) in shapes.items()]
    dense = [("kernel", (units, vocabulary)), ("bias", (vocabulary,))]
    return [*lstm, *(initial_weight(name, shape, random) for name, shape in dense)]


def _batch(ids: Any, batch: int, length: int, starts: Any) -> tuple[Any, Any]:
    """Windows that begin where chance will have it, and the same a character later."""
    import numpy as np

    first = starts.integers(0, len(ids) - length - 1, batch)
    windows = ids[first[:, None] + np.arange(length + 1)]
    return windows[:, :-1], windows[:, 1:]


# Runs steps and gives their times and losses; and says what ran, layer by layer.
Training = tuple[Callable[[list[Any]], tuple[list[float], list[float]]], Callable[[], dict[str, str | None]]]


def _keras_fit(vocabulary: int, settings: Settings) -> Training:
    if settings["implementation"] != "keras":
        import cellerate

        cellerate.select_backend(settings["backend"])
    import keras
    import numpy as np

    keras.utils.set_random_seed(0)
    keras.config.set_dtype_policy(settings["policy"])
    variant = settings.get("variant", "plain")
    layer = keras.layers.LSTM(
        settings["units"], return_sequences=True, unroll=settings["unroll"], **VARIANTS[variant]
    )
    ids = keras.Input((settings["length"],), dtype="int32")
    x = keras.layers.Embedding(vocabulary, EMBEDDING)(ids)
    if variant == "bidirectional":
        x = keras.layers.Bidirectional(layer)(x)
    elif variant == "random mask":
        x = layer(x, mask=keras.ops.not_equal(ids % 3, 0))
    else:
        x = layer(x)
    model = keras.Model(ids, keras.layers.Dense(vocabulary)(x))
    random = np.random.default_rng(0)
    model.set_weights([initial_weight(one.name, one.shape, random) for one in model.weights])
    model.compile(
        keras.optimizers.Adam(LEARNING_RATE, epsilon=EPSILON, clipnorm=CLIPNORM),
        keras.losses.SparseCategoricalCrossentropy(from_logits=True),
        jit_compile=settings["jit_compile"],
    )
    if settings["implementation"] != "keras":
        cellerate.accelerate(model, settings["implementation"])

    class Clock(keras.callbacks.Callback):
        def __init__(self) -> None:
            super().__init__()
            self.ends: list[float] = []
            self.losses: list[float] = []

        def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
            self.ends.append(time.perf_counter())
            # Keras gives the mean of the epoch so far.
            self.losses.append(float(logs["loss"]))

    def run(batches: list[Any]) -> tuple[list[float], list[float]]:
        x = np.concatenate([inputs for inputs, _ in batches])
        y = np.concatenate([targets for _, targets in batches])
        clock = Clock()
        start = time.perf_counter()
        model.fit(x, y, batch_size=len(batches[0][0]), epochs=1, shuffle=False, verbose=0, callbacks=[clock])
        times = np.diff([start, *clock.ends])
        means = np.array(clock.losses)
        count = np.arange(1, len(means) + 1)
        losses = np.diff(np.concatenate([[0.0], means * count]))
        return times.tolist(), losses.tolist()

    def ran() -> dict[str, str | None]:
        if settings["implementation"] == "keras":
            return {}
        found = cellerate.explain(model)
        kernels = {layer.path: layer.kernel for layer in found.layers}
        return {**kernels, "training step": found.training_step}

    return run, ran


def _torch_loop(vocabulary: int, settings: Settings) -> Training:
    import numpy as np
    import torch

    if settings["policy"] == "float64":
        torch.set_default_dtype(torch.float64)
    embedding = torch.nn.Embedding(vocabulary, EMBEDDING)
    lstm = torch.nn.LSTM(EMBEDDING, settings["units"], batch_first=True)
    dense = torch.nn.Linear(settings["units"], vocabulary)
    table, kernel, recurrent_kernel, bias, head, head_bias = plain_weights(vocabulary, settings["units"])
    given = (
        (embedding.weight, table),
        (lstm.weight_ih_l0, kernel.T),
        (lstm.weight_hh_l0, recurrent_kernel.T),
        (lstm.bias_ih_l0, bias),
        (lstm.bias_hh_l0, np.zeros_like(bias)),
        (dense.weight, head.T),
        (dense.bias, head_bias),
    )
    with torch.no_grad():
        for parameter, array in given:
            parameter.copy_(torch.tensor(np.ascontiguousarray(array)))
    # Keras has one bias; the other one stays at zero.
    lstm.bias_hh_l0.requires_grad_(False)
    parameters = [parameter for parameter, _ in given if parameter.requires_grad]
    optimizer = torch.optim.Adam(parameters, lr=LEARNING_RATE, fused=True)
    loss_of = torch.nn.CrossEntropyLoss()

    def forward(inputs: Any, targets: Any) -> Any:
        logits = dense(lstm(embedding(inputs))[0])
        return loss_of(logits.to(dense.weight.dtype).flatten(0, 1), targets.flatten())

    compiled = torch.compile(forward) if settings["jit_compile"] is True else forward
    taken = 0

    def run(batches: list[Any]) -> tuple[list[float], list[float]]:
        nonlocal taken
        seconds, losses = [], []
        for inputs, targets in batches:
            start = time.perf_counter()
            with torch.autocast("cpu", torch.bfloat16, enabled=settings["policy"] == "mixed_bfloat16"):
                loss = compiled(torch.from_numpy(inputs), torch.from_numpy(targets).long())
            optimizer.zero_grad()
            loss.backward()
            # As Keras clips: each gradient by itself.
            gradients = [parameter.grad for parameter in parameters]
            norms = torch._foreach_norm(gradients)
            torch._foreach_mul_(gradients, [(CLIPNORM / norm).clamp(max=1.0) for norm in norms])
            taken += 1
            # Keras adds its epsilon before it corrects for the zeros that Adam starts from.
            optimizer.param_groups[0]["eps"] = EPSILON / (1 - 0.999**taken) ** 0.5
            optimizer.step()
            losses.append(loss.item())
            seconds.append(time.perf_counter() - start)
        return seconds, losses

    return run, dict


class Contest:
    """The races of a case: what was asked to take part, what did, and what could not.

    Args:
        book: The text.
        quick: A small model and short turns.

    Attributes:
        refused: Settings of what could not take part, each with "refused", its reason.
    """

    def __init__(self, book: Path, *, quick: bool) -> None:
        self.book, self.quick = book, quick
        self.refused: list[dict[str, Any]] = []
        self._gave_up: dict[tuple[Any, ...], str] = {}

    def race(
        self,
        contestants: Sequence[Settings],
        *,
        seconds: float,
        rounds: int = 3,
        batches: Sequence[int] = (),
    ) -> list[list[dict[str, Any]]]:
        """Lets contestants take turns, each for about `seconds` in all.

        Args:
            contestants: Their settings; all have one size, variants aside.
            seconds: For each, and each batch.
            rounds: Turns of each.
            batches: Sizes of batches; those of the settings if there are none.

        Returns:
            The records, a list a batch.

        Raises:
            RuntimeError: Ours computes something else than torch in float64, or somebody has another allocator.
        """
        if self.quick:
            contestants = [one | QUICK for one in contestants]
            batches = [min(one, QUICK["batch"]) for one in batches]
        batches = batches or [contestants[0]["batch"]]
        truth = self._truth(contestants, batches)
        self._started: list[Contestant] = []
        starts = [functools.partial(self._start, settings, truth, batches) for settings in contestants]
        try:
            running = [one for one in two_at_a_time(starts) if one is not None]
            same_allocator((each.allocator for each, _ in running), contestants[0]["allocator"])
            found = [self._turns(running, batch, seconds, rounds) for batch in batches]
        finally:
            for each in self._started:
                each.close()
        for record in (one for records in found for one in records):
            show(record)
        return found

    def _truth(
        self, contestants: Sequence[Settings], batches: Sequence[int]
    ) -> dict[tuple[str, bool], dict[int, list[float]]]:
        """The first losses in float64, by variant and `own_steps`."""
        truth: dict[tuple[str, bool], dict[int, list[float]]] = {}
        for variant, own in dict.fromkeys(_judged_by(one) for one in [*_dense(contestants), *contestants]):
            # On torch Keras steps through time in Python: of the plain layer torch says the same sooner.
            implementation = "torch.nn.LSTM" if variant == "plain" and not own else "keras"
            backend = "tensorflow" if own else "torch"
            settings = _settings(backend, contestants[0]["units"], implementation, "float64")
            length = contestants[0]["length"]
            each = Contestant(self.book, **settings | {"variant": variant, "length": length})
            try:
                found = {batch: each.steps(CHECKED_STEPS, timed=False, batch=batch) for batch in batches}
            finally:
                each.close()
            if own:
                # The very first loss is the same for all, whoever takes the steps.
                found[batches[0]][0] = truth[variant, False][batches[0]][0]
            truth[variant, own] = found
        return truth

    def _start(
        self,
        settings: Settings,
        truth: dict[tuple[str, bool], dict[int, list[float]]],
        batches: Sequence[int],
    ) -> tuple[Contestant, float] | None:
        """A contestant whose losses are right, and their error; None if it cannot take part."""
        way = (settings["backend"], settings["implementation"], settings["jit_compile"], settings["unroll"])
        if way in self._gave_up:
            self._refuse(settings, self._gave_up[way])
            return None
        each = Contestant(self.book, **settings)
        self._started.append(each)
        try:
            errors = []
            for batch in batches:
                losses = each.steps(CHECKED_STEPS, timed=False, batch=batch, limit_s=COMPILE_LIMIT_S)
                errors.append(check(settings, losses, _nearest(losses, settings, truth, batch)))
        except RuntimeError as error:
            # Wrong losses are a reason too. Of ours, any is a failure.
            each.close()
            if settings["implementation"].startswith("cellerate"):
                raise
            reason = str(error)
            if isinstance(error, RefusedError):
                # What did not compile for the smallest layer is not tried again for a larger one.
                reason = self._gave_up[way] = f"{reason} (H={settings['units']})"
            self._refuse(settings, reason)
            return None
        return each, max(errors)

    def _refuse(self, settings: Settings, reason: str) -> None:
        self.refused.append({**settings, "settings": in_words(settings), "refused": reason})
        print(f"H={settings['units']:<4} {name_of(settings)} takes no part: {reason}", flush=True)

    def _turns(
        self, running: Sequence[tuple[Contestant, float]], batch: int, seconds: float, rounds: int
    ) -> list[dict[str, Any]]:
        counts = []
        for each, _ in running:
            each.steps(3, batch=batch)
            middle = as_timing(each.seconds.pop(batch)).median_s
            counts.append(max(3, round(seconds / rounds / middle)) + 1)
        for _ in range(rounds):
            for (each, _), count in zip(running, counts, strict=True):
                each.steps(min(count, 200), batch=batch)
        return [each.record(batch, error) for each, error in running]


def _judged_by(settings: Settings) -> tuple[str, bool]:
    """The variant, and whether the steps may be those of Keras on TensorFlow.

    There the gradient of an embedding is sparse, and Keras's Adam takes other steps with it than elsewhere: after the
    first, the losses of stock Keras differ from those on torch by up to 1 %, in float64 too. Ours takes these where it
    leaves the embedding to Keras, and those of the others where its kernel looks the rows up.
    """
    return settings.get("variant", "plain"), settings["backend"] == "tensorflow"


def _nearest(
    losses: Sequence[float],
    settings: Settings,
    truth: dict[tuple[str, bool], dict[int, list[float]]],
    batch: int,
) -> list[float]:
    """What a contestant's losses are compared with: of two that they may be, that with the nearer end."""
    variant, own = _judged_by(settings)
    choices = [truth[variant, False][batch]]
    if own:
        choices.append(truth[variant, True][batch])
    if settings["implementation"] == "keras" or not losses:
        return choices[-1]
    return min(choices, key=lambda one: abs(one[-1] - losses[-1]))


def _dense(contestants: Sequence[Settings]) -> list[Settings]:
    """The same, judged by torch: what every first loss is compared with."""
    return [one | {"backend": "torch"} for one in contestants]


def check(settings: Settings, losses: Sequence[float], truth: Sequence[float]) -> float:
    """The largest error of a contestant's first losses, as a share of those of float64.

    Raises:
        RuntimeError: It is above the bound, or there is nothing to compare; no time is taken then.
    """
    bound = BOUNDS[settings["policy"]]
    if settings.get("variant") == "recurrent dropout":
        losses, truth, bound = losses[:1], truth[:1], RANDOM_BOUND
    if not losses or len(losses) != len(truth):
        raise RuntimeError(f"{name_of(settings)}: {len(losses)} losses to check beside {len(truth)}")
    errors = [abs(found - right) / abs(right) for found, right in zip(losses, truth, strict=True)]
    error = max(errors)
    # A NaN is never within the bound, and no maximum either.
    if not all(each <= bound for each in errors):
        raise RuntimeError(
            f"{name_of(settings)}: its losses {losses} are {error:.1e} away from {truth}; allowed are {bound:.1e}"
        )
    return error


def name_of(settings: Settings) -> str:
    """A contestant in a line."""
    return (
        f"{settings.get('variant', 'plain'):<18} {settings['backend']:<11} {settings['implementation']:<14} "
        f"{settings['policy']:<15} {in_words(settings)}"
    )


def show(record: dict[str, Any]) -> None:
    """Prints a record."""
    print(
        f"H={record['units']:<4} B={record['batch']:<4} {record['median_s'] * 1e3:8.1f} ms  "
        f"{record['characters_per_s'] / 1e3:7.1f} k characters/s  {name_of(record)}",
        flush=True,
    )


def contestants_of(units: int, policy: str, allocator: str = "kept") -> list[Settings]:
    """Everything that can train the model in a precision, each in every way that may be its fastest."""
    ways: dict[str, list[dict[str, Any]]] = {
        # By itself Keras compiles no LSTM for XLA on TensorFlow; jax always compiles, torch never.
        "tensorflow": [{}, {"jit_compile": True}, {"jit_compile": True, "unroll": True}],
        "jax": [{}, {"unroll": True}],
        "torch": [{}, {"jit_compile": True}],
    }
    found = []
    for backend, tried in ways.items():
        for way in tried:
            found.append(_settings(backend, units, "keras", policy) | way)
        found.append(_settings(backend, units, "cellerate-cpu", policy))
    for way in ({}, {"jit_compile": True}):
        found.append(_settings("torch", units, "torch.nn.LSTM", policy) | way)
    return [one | {"allocator": allocator} for one in found]


def plain_ways(found: Iterable[Settings]) -> list[Settings]:
    """Those without an extra setting."""
    return [one for one in found if one["jit_compile"] == "auto" and not one["unroll"]]


def main_race(book: Path, *, quick: bool) -> dict[str, Any]:
    """Every contestant of one size against the others, and what the allocator alone brings."""
    contest = Contest(book, quick=quick)
    seconds = 0.3 if quick else 3
    found: dict[str, Any] = {"batch": BATCH, "length": LENGTH, "embedding": EMBEDDING, "races": []}
    for units in (128,) if quick else (128, 256, 512):
        records = []
        for policy in BOUNDS:
            records += contest.race(contestants_of(units, policy), seconds=seconds)[0]
        found["races"].append(records)
    stock = plain_ways(contestants_of(256, "float32", "stock"))
    (found["stock_allocator"],) = contest.race(stock, seconds=seconds)
    found["refused"] = contest.refused
    return found


def variants_race(book: Path, *, quick: bool) -> dict[str, Any]:
    """Each variant of the layer, ours and Keras's own."""
    backend, units = "jax", 256
    contest = Contest(book, quick=quick)
    found: dict[str, Any] = {"backend": backend, "units": units}
    for policy in ("float32",) if quick else tuple(BOUNDS):
        contestants = [
            {**_settings(backend, units, implementation, policy), "variant": name}
            for name in VARIANTS
            for implementation in ("cellerate-cpu", "keras")
        ]
        (found[policy],) = contest.race(contestants, seconds=0.3 if quick else 2.5)
    found["refused"] = contest.refused
    return found


def small_batches(book: Path, *, quick: bool) -> dict[str, Any]:
    """Batches of 1 and 8, in float32."""
    contest, by_batch = Contest(book, quick=quick), {}
    for units in (128,) if quick else (128, 256, 512):
        batches = (1, 8)
        contestants = [one for one in contestants_of(units, "float32") if not one["unroll"]]
        races = contest.race(contestants, seconds=0.3 if quick else 1.5, batches=batches)
        for batch, records in zip(batches, races, strict=True):
            by_batch.setdefault(batch, []).append(records)
    races = [race for races in by_batch.values() for race in races]
    return {"races": races, "refused": contest.refused}


def losses(book: Path, *, quick: bool) -> dict[str, Any]:
    """The loss after 300 steps: Keras in float32 beside ours in float32 and bfloat16, same weights and batches."""
    steps, found = 20 if quick else 300, []
    for units in (128,) if quick else (128, 256):
        for implementation, policy in _KERAS_AND_OURS:
            each = Contestant(book, **_settings("jax", units, implementation, policy))
            curve = each.steps(steps)
            each.close()
            last = sum(curve[-20:]) / 20
            found.append({**each.settings, "steps": steps, "mean_of_last_20": last, "curve": curve})
            print(f"H={units:<4} {implementation:<14} {policy:<15} loss {last:.4f}", flush=True)
    return {"losses": found}


def memory(book: Path, *, quick: bool) -> dict[str, Any]:
    """What a process that trains holds at most: ten steps, each step's loss waited for."""
    found = []
    for units in (128,) if quick else (128, 256, 512):
        for implementation, policy in _KERAS_AND_OURS:
            each = Contestant(book, **_settings("jax", units, implementation, policy))
            each.steps(10)
            each.close()
            found.append({**each.settings, "peak_bytes": [each.peak_bytes]})
            print(
                f"H={units:<4} {implementation:<14} {policy:<15} {each.peak_bytes / 1e6:.0f} MB at most",
                flush=True,
            )
    return {"processes": found}


_KERAS_AND_OURS = (
    ("keras", "float32"),
    ("cellerate-cpu", "float32"),
    ("cellerate-cpu", "mixed_bfloat16"),
)


def _settings(backend: str, units: int, implementation: str, policy: str) -> Settings:
    return {
        "backend": backend,
        "units": units,
        "implementation": implementation,
        "policy": policy,
        "batch": BATCH,
        "length": LENGTH,
        "allocator": "kept",
        "jit_compile": "auto",
        "unroll": False,
    }


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--contestant", type=json.loads, required=True)
    parser.add_argument("book", type=Path)
    arguments = parser.parse_args()
    contestant(arguments.book, arguments.contestant)
