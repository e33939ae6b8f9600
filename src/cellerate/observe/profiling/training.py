"""Profiles a training: times a few steps of `fit`, records them under the backend's profiler, and tries changes."""

from __future__ import annotations

import contextlib
import shutil
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import keras

from cellerate.errors import ConfigError, ModelError
from cellerate.files import atomic_folder, check_writable
from cellerate.machine.doctor import Others
from cellerate.machine.environment import resident_memory_bytes
from cellerate.observe.profiling import engine
from cellerate.observe.profiling.changes import Found, find_changes, is_cold
from cellerate.observe.profiling.feeding import Feed, KeptBatches, first_batch, inputs_of, keep, rows_of
from cellerate.observe.profiling.record import Memory, Part, Profile, bottleneck
from cellerate.observe.profiling.stepping import timed_steps
from cellerate.observe.profiling.surroundings import surroundings
from cellerate.observe.profiling.tracing import PASSES, parts_of, products_of, trace_steps
from cellerate.observe.profiling.unharmed import unharmed
from cellerate.observe.profiling.work import peak_flops

_VALIDATED_S = 1.0
_LEAST_STALL = 0.03


def profile(
    model: keras.Model,
    x: Any,
    y: Any = None,
    *,
    batch_size: int | None = None,
    shuffle: bool = True,
    validation_data: Any = None,
    validation_batch_size: int | None = None,
    changes: bool = True,
    seconds: float = 1.0,
    trace: str | Path | None = None,
    notify: Callable[[str], None] = lambda text: None,
) -> Profile:
    """Measure where a training spends its time, and which change would shorten it most.

    The model trains for a few steps and is then restored. A generator, or other data that can be read only once, loses
    the batches used.

    Args:
        model: A compiled Keras model.
        x: The data, as for `fit`: arrays, a `PyDataset`, a `tf.data.Dataset`, a `DataLoader`, or another iterable of
            batches.
        y: Targets, if `x` is arrays.
        batch_size: Rows a batch, if `x` is arrays; Keras takes 32 if it is not given.
        shuffle: As in `fit`.
        validation_data: As in `fit`: a tuple of arrays, or an iterable of batches; None for none.
        validation_batch_size: As in `fit`.
        changes: Whether to try changes that might shorten it.
        seconds: The approximate length of each measurement.
        trace: A folder for the backend's own trace, for TensorBoard and Perfetto; None keeps none.
        notify: Called with the next measurement.

    Returns:
        The profile; print it.

    Raises:
        ModelError: `model` is not a compiled Keras model, or its optimizer cannot be made anew.
        ConfigError: There are too few batches, or the folder for the trace exists.
        OutputError: The trace could not be written.

    Example:
        >>> print(cellerate.profile(model, x, y, batch_size=64))  # doctest: +SKIP
    """
    if not isinstance(model, keras.Model) or not model.compiled:
        raise ModelError(
            "profile needs a compiled Keras model, because it profiles its training. Call model.compile(optimizer, "
            "loss) first."
        )
    if trace is not None:
        if Path(trace).exists():
            raise ConfigError(f"{trace} exists already: name a new folder for the trace.")
        check_writable(trace)
    feed = Feed(x, y, batch_size, shuffle)
    if not all(layer.built for layer in model._flatten_layers()):
        # Otherwise the model might have no weights yet to restore.
        model(inputs_of(first_batch(feed)))
    with contextlib.ExitStack() as held:
        # A profiler that fails to write at its end may not start again in this process.
        folder = Path(held.enter_context(tempfile.TemporaryDirectory()))
        held.enter_context(unharmed(model))
        before_bytes = resident_memory_bytes()
        others = Others()
        notify("steps as they are")
        found, batches = _timed(model, feed, seconds)
        found.validation_s = _validation_s(model, validation_data, validation_batch_size or batch_size)
        write = trace is not None
        where = _where(model, feed, batches, found, before_bytes, folder, notify, trace=write)
        if trace is not None:
            with atomic_folder(trace) as beside:
                shutil.copytree(folder, beside, dirs_exist_ok=True)
        found.idle = where.idle
        tried, remarks = find_changes(model, batches, found, seconds, notify) if changes else ([], [])
    environment, load = surroundings(others)
    step_ms, parts, peak = 1e3 * found.step_s, where.parts, where.peak
    return Profile(
        model=model.name,
        subject="training step",
        backend=keras.config.backend(),
        rows=rows_of(batches[0]),
        step_ms=step_ms,
        parts=tuple(parts),
        slowdown=where.slowdown,
        idle=sum(part.idle_ms for part in parts) / step_ms,
        share_of_peak=PASSES * 2 * where.products / found.step_s / peak if peak and where.products else None,
        peak_flops=peak,
        memory=where.memory,
        changes=tuple(tried),
        bottleneck=bottleneck(tried, parts, tried=changes),
        steps_per_epoch=found.steps_per_epoch,
        validation_ms=None if found.validation_s is None else 1e3 * found.validation_s,
        notes=(
            *load,
            f"The machine's peak is measured: {where.how}." if peak else f"No peak: {where.how}",
            *remarks,
        ),
        environment=environment,
        trace="" if trace is None else str(trace),
    )


class _Where(NamedTuple):
    """The division of a step's time.

    Attributes:
        parts: The parts of the step.
        products: The multiplications of a forward pass.
        memory: The memory of the steps.
        slowdown: The extra time of the steps while they were watched, as a share.
        idle: The share of the time in which nothing was computed.
        peak: The machine's peak, in operations per second; None if unknown.
        how: The way the peak was measured, or the reason why it was not.
    """

    parts: list[Part]
    products: int
    memory: Memory | None
    slowdown: float
    idle: float
    peak: float | None
    how: str


def _where(
    model: keras.Model,
    feed: Feed,
    batches: list[Any],
    found: Found,
    before_bytes: int,
    folder: Path,
    notify: Callable[[str], None],
    *,
    trace: bool,
) -> _Where:
    """Watch further steps: the engine's by its own clocks, others under the backend's profiler."""
    # If that is faster, batches come from memory, which separates the wait for them from the rest.
    waits = found.step_s - found.kept_s > _LEAST_STALL * found.step_s
    kept = Feed(KeptBatches(batches), shuffle=False) if waits else feed
    plain_s = found.kept_s if waits else found.step_s
    peak, how = peak_flops(model)
    whole = None
    if engine.trains(model):
        notify("the parts of whole steps")
        whole = engine.watch_steps(model, kept, batches[0], before_bytes)
    if whole is None or trace:
        notify("the same under the backend's profiler")
        traced = trace_steps(model, kept, batches[0], folder, before_bytes, write=trace)
    if whole is not None:
        parts = engine.parts_of(whole, plain_s, found.step_s, peak, type(model.optimizer).__name__)
        idle = sum(part.idle_ms for part in parts) / (1e3 * found.step_s)
        slowdown = whole.step_s / plain_s - 1
        return _Where(parts, engine.products(whole), whole.memory, slowdown, idle, peak, how)
    shares = traced.shares
    return _Where(
        parts_of(traced, plain_s, found.step_s, peak),
        sum(products_of(part) or 0 for part in traced.parts),
        traced.memory,
        shares.window_ns / 1e9 / traced.steps / plain_s - 1,
        shares.idle_ns / shares.window_ns,
        peak,
        how,
    )


def _timed(model: keras.Model, feed: Feed, seconds: float) -> tuple[Found, list[Any]]:
    """The times of steps on the user's data, and of the same steps from memory."""
    first = timed_steps(model, feed, seconds)
    batches, batch_s = keep(feed)
    in_memory = Feed(KeptBatches(batches), shuffle=False)
    kept_s = timed_steps(model, in_memory, seconds).step_s
    batch_bytes = sum(array.nbytes for array in keras.tree.flatten(batches[0]) if array is not None)
    step_s = first.step_s
    if not is_cold(first.disk_bytes, batch_bytes):
        # The machine's speed may have changed in between. The loader's cost shows in both turns, so the smaller
        # difference counts. Data from storage are in the page cache by now, and are not measured again.
        again_s, kept_again_s = (timed_steps(model, each, seconds / 2).step_s for each in (feed, in_memory))
        waited_s = max(0.0, min(step_s - kept_s, again_s - kept_again_s))
        kept_s = min(kept_s, kept_again_s)
        step_s = min(step_s, again_s, kept_s + waited_s)
    found = Found(
        step_s=step_s,
        kept_s=kept_s,
        batch_s=batch_s,
        batch_bytes=batch_bytes,
        disk_bytes=first.disk_bytes,
        idle=0.0,
        steps_per_epoch=feed.batches,
        validation_s=None,
    )
    return found, batches


def _validation_s(model: keras.Model, data: Any, batch_size: int | None) -> float | None:
    """The seconds of an epoch's validation, from some of its batches; None if unknown."""
    if data is None:
        return None
    x, y, _ = (
        keras.utils.unpack_x_y_sample_weight(data) if isinstance(data, tuple | list) else (data, None, None)
    )
    feed = Feed(x, y, batch_size, shuffle=False)
    count = feed.batches
    if count is None:
        return None
    evaluate = {name: value for name, value in feed.arguments.items() if name != "shuffle"}

    def seconds(batches: int) -> float:
        """The seconds of some batches, in the second of two rounds; the first round compiles for all their sizes."""
        taken = 0.0
        for _ in range(2):
            began = time.perf_counter()
            with contextlib.closing(feed):
                model.evaluate(**evaluate, steps=-(-batches // together), verbose=0)
            taken = time.perf_counter() - began
        return taken

    together = model.steps_per_execution
    some = min(count, together)
    taken = seconds(some)
    while some < count and taken < _VALIDATED_S:
        some = min(count, 4 * some)
        taken = seconds(some)
    return taken * count / some
