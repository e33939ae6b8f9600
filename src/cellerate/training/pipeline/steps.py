"""The training steps that the stages of a model take together.

A stage works on a chunk of time while the stage before works on the next. Backward goes from the last chunk to the
first, with the gradients of the states, so the gradients equal those of the whole sequence, and the loss curve equals
that of one process.
"""

from __future__ import annotations

import dataclasses
import importlib
import math
import time
from collections.abc import Callable, Sequence
from typing import Any

import keras
import numpy as np
from keras import ops

from cellerate.data.arrays import BatchSource
from cellerate.errors import ConfigError
from cellerate.layers.chunked import ChunkedLayers
from cellerate.layers.engine.gradient_norm import norms_of
from cellerate.machine.environment import peak_memory_bytes
from cellerate.messages import argument
from cellerate.training.pipeline.costs import divisible, measured_costs
from cellerate.training.pipeline.division import StageLayout, balanced, bubble_share, chunk_bounds
from cellerate.training.pipeline.gathering import Gathering
from cellerate.training.pipeline.parts import StageBatch, judging, preparing, running


@dataclasses.dataclass(frozen=True)
class StageReport:
    """A stage of the first copy of a model.

    Attributes:
        stage: The number of the stage, from 0.
        layers: The names of its layers.
        cost_ms: The measured milliseconds of these layers in a step, on which the division is based.
        chunks: The number of chunks of the time axis.
        bubble: The share of the time that each of equal stages would wait for the others.
        waiting: The measured share of the time that the stage waited.
        memory_bytes: The peak resident memory of its process.
    """

    stage: int
    layers: tuple[str, ...]
    cost_ms: float
    chunks: int
    bubble: float
    waiting: float
    memory_bytes: int


class DividedTraining:
    """A stage of a compiled model, which takes steps with the other stages.

    Args:
        trainer: The compiled model; its `fit` and `evaluate` run through the stages from then on.
        source: The training batches of this process's copy.
        layout: The position of this process.
        of_first: Returns the first process's float32 array in all processes; all must call it.
    """

    def __init__(self, trainer: keras.Model, source: BatchSource, layout: StageLayout, of_first: Any) -> None:
        self._bridge = importlib.import_module(f"cellerate.bridges.{keras.config.backend()}_stages")
        self._trainer, self.layout = trainer, layout
        self._trunk = divisible(trainer, layout.stages)
        self._check_optimizer()
        # Build the metrics now: building reads them, and later all processes would have to read them at once.
        trainer._symbolic_build(data_batch=source.batch(0, 0))
        self._within = False
        self._link = self._bridge.StageLink(layout.stages)
        self._divide(source, of_first)
        self._gathering = Gathering(trainer, self._layers_of, self._link, layout)
        self._waited_s = self._worked_s = 0.0
        self._names: tuple[str, ...] = ()
        self._make_parts()
        # Set on the instance, so the class of the model, and with it the saved file, stays the same.
        trainer.make_train_function, trainer.make_test_function = self._make_training, self._make_testing
        trainer.get_metrics_result = self.metrics
        trainer.train_function = trainer.test_function = None

    def _check_optimizer(self) -> None:
        optimizer = self._trainer.optimizer
        if hasattr(optimizer, "inner_optimizer"):
            raise ConfigError(
                f"stages cannot scale the loss of mixed_float16: use {argument('precision', 'mixed_bfloat16')}."
            )
        if optimizer.gradient_accumulation_steps and optimizer.global_clipnorm:
            raise ConfigError(
                f"stages clip the norm of all gradients before they are accumulated: leave out "
                f"{argument('accumulate')} or {argument('global_clipnorm')}."
            )

    def _divide(self, source: BatchSource, of_first: Any) -> None:
        """Measures the cost of the layers, and divides them into stages."""
        layout, count = self.layout, len(self._trunk.layers)
        found = np.zeros(count + 1, np.float32)
        if layout.number == 0:
            costs = measured_costs(
                self._trainer, self._trunk, source, self._bridge, layout.stages, layout.chunks
            )
            found[:] = [*costs.seconds, costs.chunks]
        *seconds, chunks = of_first(found).tolist()
        self.chunks = int(chunks)
        self._ranges = balanced(seconds, layout.stages)
        self._cost_ms = [1e3 * sum(seconds[number] for number in stage) for stage in self._ranges]

    def _layers_of(self, stage: int) -> list[keras.Layer]:
        """The layers and models whose weights a stage trains."""
        found: list[keras.Layer] = [self._trunk.layers[number] for number in self._ranges[stage]]
        if stage == 0 and self._trunk.before is not None:
            found.insert(0, self._trunk.before)
        if stage == self.layout.stages - 1 and self._trunk.after is not None:
            found.append(self._trunk.after)
        return found

    def _make_parts(self) -> None:
        layout, trunk, make = self.layout, self._trunk, self._bridge.StagePart
        own = self._ranges[layout.stage]
        chunked = ChunkedLayers([trunk.layers[number] for number in own])
        self._initial_states = chunked.initial_states
        self._entry = trunk.entry if layout.begins else trunk.tensors[own[0] - 1]
        self._exit = trunk.tensors[own[-1]]
        trainable = [v for layer in chunked.layers for v in layer.trainable_variables]
        others = [v for layer in chunked.layers for v in layer.non_trainable_variables]
        self._part = make(running(chunked), trainable, others)
        parts, self._trainable = [self._part], [trainable]
        self._before = self._judge = None
        self._trains_before = False
        if layout.begins and trunk.before is not None:
            first = trunk.before
            self._before = make(preparing(trunk), first.trainable_variables, first.non_trainable_variables)
            self._trains_before = bool(first.trainable_variables)
            parts.append(self._before)
            self._trainable.append(first.trainable_variables)
        if layout.ends:
            run, weights, changed = judging(self._trainer, trunk)
            self._judge = make(run, weights, changed)
            parts.append(self._judge)
            self._trainable.append(weights)
        self._parts = parts
        if layout.copy:
            self._draw_apart()

    def _draw_apart(self) -> None:
        """Gives each copy but the first seeds of its own: its rows are others, and so is their dropout."""
        for layer in self._trainer._flatten_layers():
            for generator in getattr(layer, "_seed_generators", ()):
                state = np.array(ops.convert_to_numpy(generator.state.value)).astype(np.int64)
                state[0] = (state[0] + 0x9E3779B1 * self.layout.copy) % 2**31
                generator.state.assign(state)

    def _make_training(self, force: bool = False) -> None:
        trainer = self._trainer
        if trainer.train_function is not None and not force:
            return
        optimizer = trainer.optimizer
        # The norm of this stage's gradients is not that of all.
        self._clip, optimizer.global_clipnorm = optimizer.global_clipnorm, None
        if not optimizer.built:
            optimizer.build(trainer.trainable_variables)
        own = [variable for group in self._trainable for variable in group]
        self._update = self._bridge.StageUpdate(optimizer, own)
        self._norms = norms_of(optimizer)
        trainer.train_function = self._bridge.begin_steps(trainer, self._step(self._train), training=True)

    def _make_testing(self, force: bool = False) -> None:
        if self._trainer.test_function is None or force:
            test = self._step(self._test)
            self._trainer.test_function = self._bridge.begin_steps(self._trainer, test, training=False)

    def _step(self, function: Callable[[Any], dict[str, float]]) -> Callable[[Any], dict[str, float]]:
        """A function of a batch, timed, within which metrics are those of this process."""

        def step(data: Any) -> dict[str, float]:
            began, self._within = time.perf_counter(), True
            try:
                return function(data)
            finally:
                self._within = False
                self._worked_s += time.perf_counter() - began

        return step

    def _train(self, data: Any) -> dict[str, float]:
        """Takes a step on a batch; the loss is that of all its rows, what other metrics say is read later."""
        batch = StageBatch.of(self._trainer, self._trunk, data)
        ends, tapes, prepared = self._ahead(batch)
        loss, dends = 0.0, None
        if self._judge is not None:
            end = ops.concatenate(ends, axis=1) if self._over_time else ends[-1]
            share = self._share(batch)
            value, _, tape = self._judge.forward(batch.judged(share), end, ())
            dends, _ = self._judge.backward(tape, ops.ones_like(value), ())
            loss = float(ops.convert_to_numpy(value))
        self._back(batch, tapes, dends, prepared)
        self._link.finish()
        loss = self._apply(loss)
        return {name: loss if name == "loss" else math.nan for name in self._log_names()}

    @property
    def _over_time(self) -> bool:
        return len(self._exit.shape) == 3

    def _ahead(self, batch: StageBatch) -> tuple[list[Any], list[Any], Any]:
        """Runs all chunks forward; returns the last stage's outputs, the tapes, and the tape of the part before."""
        ends, tapes, prepared = [], [], None
        fixed, x = self._entering(batch)
        if self._before is not None:
            made, _, prepared = self._before.forward(batch.entering, None, ())
            fixed, x = (None, made) if self._trains_before else (made, None)
        states = self._initial_states(batch.rows)
        for begin, end in chunk_bounds(batch.steps, self.chunks):
            given = self._chunk(batch, fixed, begin, end), self._chunk(batch, x, begin, end)
            if not self.layout.begins:
                given = None, self._received(self._entry, batch, end - begin, self.layout.number - 1)
            y, states, tape = self._part.forward(*given, states)
            tapes.append(tape)
            if self.layout.ends:
                ends.append(y)
            else:
                self._link.send(y, self.layout.number + 1)
        return ends, tapes, prepared

    def _entering(self, batch: StageBatch) -> tuple[Any, Any]:
        """The whole input sequence of the first stage: first without a gradient, second with one."""
        return (batch.entering[0], None) if self.layout.begins and self._before is None else (None, None)

    def _chunk(self, batch: StageBatch, whole: Any, begin: int, end: int) -> Any:
        return None if whole is None else whole[:, begin:end]

    def _back(self, batch: StageBatch, tapes: list[Any], dends: Any, prepared: Any) -> None:
        """Goes backward through all chunks, from the last to the first."""
        dstates: Sequence[Any] = [None for _ in self._initial_states(1)]
        dentering = []
        bounds = chunk_bounds(batch.steps, self.chunks)
        for number, (begin, end) in reversed(list(enumerate(bounds))):
            if not self.layout.ends:
                dy = self._received(self._exit, batch, end - begin, self.layout.number + 1)
            elif self._over_time:
                dy = dends[:, begin:end]
            else:
                dy = dends if number == len(bounds) - 1 else None
            dx, dstates = self._part.backward(tapes.pop(), dy, dstates)
            if not self.layout.begins:
                self._link.send(dx, self.layout.number - 1)
            elif dx is not None:
                dentering.append(dx)
        if dentering and self._before is not None:
            self._before.backward(prepared, ops.concatenate(dentering[::-1], axis=1), ())

    def _received(self, like: Any, batch: StageBatch, steps: int, source: int) -> Any:
        """Waits for a chunk from another stage."""
        began = time.perf_counter()
        shape = (batch.rows, steps, *like.shape[2:])
        found = self._link.receive(shape, keras.backend.standardize_dtype(like.dtype), source)
        self._bridge.settled(found)
        self._waited_s += time.perf_counter() - began
        return found

    def _share(self, batch: StageBatch) -> float:
        """The factor of the loss of a copy's rows, so that the mean over the copies is the loss of all rows.

        All copies have the same number of rows, but their sample weights may differ.
        """
        copies = self.layout.copies
        if copies == 1:
            return 1.0
        reductions = {getattr(loss, "reduction", None) for loss in keras.tree.flatten(self._trainer.loss)}
        if reductions == {"sum"}:
            return float(copies)
        if batch.weight is None or "mean_with_sample_weight" not in reductions:
            return 1.0
        here = float(ops.convert_to_numpy(ops.sum(batch.weight)))
        everywhere = float(self._link.sums([here], of_copies=True)[0])
        return copies * here / everywhere if everywhere else 0.0

    def _apply(self, loss: float) -> float:
        """Updates the weights of the stage. Returns the loss over the rows of all copies."""
        gradients = [gradient for part in self._parts for gradient in part.take_gradients()]
        gradients = self._link.mean_of_copies(gradients)
        squares, loss = self._link.sums([self._bridge.squares(gradients), loss]) / self.layout.copies
        norm = math.sqrt(squares)
        if self._clip is not None and norm > self._clip:
            gradients = self._bridge.scaled(gradients, self._clip / norm)
        counted = None if self._norms is None else np.array(ops.convert_to_numpy(self._norms.value))
        self._update(gradients)
        if self._norms is not None and counted is not None:
            self._norms.assign(counted + np.array([norm, 1.0], np.float32))
        return float(loss)

    def _test(self, data: Any) -> dict[str, float]:
        """Evaluates a batch; the metrics are read later."""
        batch = StageBatch.of(self._trainer, self._trunk, data)
        fixed, _ = self._entering(batch)
        if self._before is not None:
            fixed, _ = self._before.infer(batch.entering, None, ())
        states, ends = self._initial_states(batch.rows), []
        for begin, end in chunk_bounds(batch.steps, self.chunks):
            given = self._chunk(batch, fixed, begin, end), None
            if not self.layout.begins:
                given = None, self._received(self._entry, batch, end - begin, self.layout.number - 1)
            y, states = self._part.infer(*given, states)
            if self.layout.ends:
                ends.append(y)
            else:
                self._link.send(y, self.layout.number + 1)
        if self._judge is not None:
            end = ops.concatenate(ends, axis=1) if self._over_time else ends[-1]
            self._judge.infer(batch.judged(self._share(batch)), end, ())
        self._link.finish()
        return dict.fromkeys(self._log_names(), math.nan)

    def _log_names(self) -> tuple[str, ...]:
        self._names = self._names or tuple(type(self._trainer).get_metrics_result(self._trainer))
        return self._names

    def metrics(self) -> dict[str, Any]:
        """The metrics over the rows of all copies, counted by their last stages. All processes must call it.

        Within a step, and before a compiled model's first step, the metrics are this process's own.
        """
        trainer = self._trainer
        if self._within or (trainer.train_function is None and trainer.test_function is None):
            return type(trainer).get_metrics_result(trainer)
        return self._gathering.metrics()

    def settle(self) -> None:
        """Gives the first process all weights, optimizer slots and metrics. All processes must call it."""
        self._gathering.settle()

    def count_once(self) -> None:
        """Makes metric sums that every process has read from a checkpoint count only in the first process."""
        self._gathering.count_once()

    def in_words(self) -> str:
        """The division of the model as a message."""
        stages = [
            f"{', '.join(self._trunk.layers[number].name for number in own)} ({cost:.3g} ms)"
            for own, cost in zip(self._ranges, self._cost_ms, strict=True)
        ]
        return (
            f"{self.layout.stages} stages: {' | '.join(stages)}; {self.chunks} chunks of time, of which the bubble is "
            f"{bubble_share(self.layout.stages, self.chunks):.0%}"
        )

    def reports(self, gathered: Any) -> tuple[StageReport, ...]:
        """The stages of the first copy; `gathered` returns all processes' integers. All processes must call it."""
        waiting = round(1e6 * self._waited_s / self._worked_s) if self._worked_s else 0
        memory = (peak_memory_bytes() or 0) >> 10
        found = np.asarray(gathered([waiting, memory]))
        return tuple(
            StageReport(
                stage=stage,
                layers=tuple(self._trunk.layers[number].name for number in own),
                cost_ms=cost,
                chunks=self.chunks,
                bubble=bubble_share(self.layout.stages, self.chunks),
                waiting=float(found[stage, 0]) / 1e6,
                memory_bytes=int(found[stage, 1]) << 10,
            )
            for stage, (own, cost) in enumerate(zip(self._ranges, self._cost_ms, strict=True))
        )
