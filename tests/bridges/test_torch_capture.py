"""A captured training step does what Keras's own does, step for step; a graph on the CPU stands in for CUDA's."""

import functools
from collections.abc import Callable
from typing import Any

import keras
import numpy as np
import pytest

if keras.backend.backend() != "torch":
    pytest.skip("torch's own", allow_module_level=True)

import torch
from keras import layers
from torch.utils import _pytree as pytree
from torch.utils._python_dispatch import TorchDispatchMode

from cellerate import accelerate
from cellerate.bridges import torch_capture
from cellerate.bridges.torch_capture import CapturedStep
from cellerate.bridges.torch_draws import Draws, NotCapturableError, SeedStates
from cellerate.layers.cuda_graph_step import seeding

pytestmark = [pytest.mark.keras, pytest.mark.backends]
V, B, T = 12, 4, 6
IDS = np.random.default_rng(0).integers(0, V, (5 * B + 2, T + 1)).astype("int32")
X, Y = IDS[:, :-1], IDS[:, 1:]


class GraphOnTheCpu(TorchDispatchMode):
    """Records the operations, not the Python that starts them, and refuses what CUDA refuses."""

    def __init__(self) -> None:
        super().__init__()
        self._recorded: list[tuple[Any, Any, Any, Any]] = []
        self._before: dict[int, tuple[torch.Tensor, torch.Tensor]] = {}
        self.replays = 0

    def capture(self, work: Callable[[], Any]) -> Any:
        try:
            with self:
                outputs = work()
        finally:
            for tensor, value in self._before.values():
                tensor.data.copy_(value)
        for output in outputs.values():
            output.fill_(torch.nan)
        return outputs

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        name = func._schema.name
        of_host = name in ("aten::_local_scalar_dense", "aten::lift_fresh")
        if of_host or any(isinstance(arg, torch.Generator) for arg in [*args, *kwargs.values()]):
            raise RuntimeError(f"{name} is not permitted when stream is capturing")
        named = dict(zip([arg.name for arg in func._schema.arguments], args, strict=False)) | kwargs
        written = [arg.name for arg in func._schema.arguments if arg.alias_info and arg.alias_info.is_write]
        for tensor in pytree.tree_leaves([named[name] for name in written]):
            self._before.setdefault(id(tensor), (tensor, tensor.detach().clone()))
        result = func(*args, **kwargs)
        # Memory is given once; a view and what is changed in place stay where they are.
        empty = name.startswith(("aten::empty", "aten::new_empty"))
        alias = any(returned.alias_info is not None for returned in func._schema.returns)
        if not empty and (written or not alias):
            self._recorded.append((func, args, kwargs, None if alias else result))
        return result

    @torch.no_grad()
    def replay(self) -> None:
        self.replays += 1
        for func, args, kwargs, place in self._recorded:
            result = func(*args, **kwargs)
            for there, made in zip(pytree.tree_leaves(place), pytree.tree_leaves(result), strict=False):
                if there is not None:
                    there.copy_(made)


def model_of(optimizer: Any = None, *more: keras.Layer, lstm: Any = None, **options: Any) -> keras.Model:
    keras.utils.set_random_seed(0)
    model = keras.Sequential(
        [
            keras.Input((None,), dtype="int32"),
            layers.Embedding(V, 8),
            layers.LSTM(8, return_sequences=True, **(lstm or {})),
            *more,
            layers.Dense(V),
        ]
    )
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile(
        optimizer or keras.optimizers.Adam(0.01, clipnorm=1.0), loss, metrics=["accuracy"], **options
    )
    return model


def captured(model: keras.Model) -> tuple[CapturedStep, list[GraphOnTheCpu]]:
    """Puts a captured step into a model."""
    graphs: list[GraphOnTheCpu] = []

    def new_graph() -> GraphOnTheCpu:
        graphs.append(GraphOnTheCpu())
        return graphs[-1]

    model.make_train_function()
    step = model.train_function = CapturedStep(
        model.train_function, "cpu", functools.partial(seeding, model), new_graph
    )
    return step, graphs


class Steps(keras.callbacks.Callback):
    """Keeps the logs of every step, and changes the learning rate between them."""

    def __init__(self) -> None:
        super().__init__()
        self.logs: list[dict[str, float]] = []

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        self.logs.append({name: float(value) for name, value in logs.items()})
        if len(self.logs) == 9:
            self.model.optimizer.learning_rate = 0.003


def fit(model: keras.Model, **given: Any) -> list[dict[str, float]]:
    steps = Steps()
    history = model.fit(X, Y, batch_size=B, epochs=3, shuffle=False, verbose=0, callbacks=[steps], **given)
    return [*steps.logs, {name: values[-1] for name, values in history.history.items()}]


@pytest.mark.parametrize(
    "optimizer",
    [
        lambda: keras.optimizers.Adam(0.01, clipnorm=1.0),
        lambda: keras.optimizers.SGD(0.1),
        lambda: keras.optimizers.SGD(0.1, momentum=0.9, nesterov=True, weight_decay=0.01),
        lambda: keras.optimizers.AdamW(0.01, global_clipnorm=1.0),
        lambda: keras.optimizers.RMSprop(0.01, use_ema=True),
        lambda: keras.optimizers.Adadelta(0.5),
        lambda: keras.optimizers.Lion(0.001),
    ],
    ids=["adam", "sgd", "nesterov", "adamw", "rmsprop-ema", "adadelta", "lion"],
)
def test_captured_fit_is_keras_own_step_for_step(optimizer: Callable[[], Any]) -> None:
    stock = model_of(optimizer())
    expected = fit(stock, validation_split=0.2)
    model = model_of(optimizer())
    step, graphs = captured(model)
    assert fit(model, validation_split=0.2) == expected
    assert step.refused is None
    # Five steps an epoch, of which the last is smaller and comes too rarely; three run as ever.
    assert [graph.replays for graph in graphs] == [3 * 4 - 3]
    for ours, theirs in zip(model.get_weights(), stock.get_weights(), strict=True):
        np.testing.assert_array_equal(ours, theirs)


def test_captured_fit_with_a_schedule_and_sample_weights_is_keras_own() -> None:
    schedule = keras.optimizers.schedules.CosineDecay(0.1, 10)
    weights = np.random.default_rng(1).random(X.shape).astype("float32")
    losses = []
    for wrap in (False, True):
        model = model_of(keras.optimizers.SGD(schedule))
        graphs = captured(model)[1] if wrap else []
        history = model.fit(X, Y, B, sample_weight=weights, epochs=3, shuffle=False, verbose=0)
        losses.append(history.history["loss"])
    assert losses[0] == losses[1] and len(graphs) == 1


def test_logs_of_a_step_stay_what_they_were() -> None:
    model = model_of()
    captured(model)
    batch = [(torch.from_numpy(X[:B]), torch.from_numpy(Y[:B]))]
    for _ in range(3):
        model.train_function(batch)
    first = model.train_function(batch)["loss"]
    kept = float(first)
    assert float(model.train_function(batch)["loss"]) != kept
    assert float(first) == kept


DRAWING: dict[str, Callable[[], keras.Model]] = {
    "lstm": lambda: accelerate(
        model_of(lstm={"dropout": 0.3, "recurrent_dropout": 0.2, "seed": 12345}),
        "cellerate-cpu",
        engine="off",
    ),
    "dropout": lambda: model_of(None, layers.Dropout(0.3, seed=3), layers.SpatialDropout1D(0.2, seed=0)),
    # Drawn by one layer twice in a step.
    "shared": lambda: model_of(None, *[layers.Dropout(0.3, (None, 1, None), seed=3)] * 2),
    "noise": lambda: model_of(None, layers.GaussianNoise(0.3, seed=3), layers.AlphaDropout(0.2, seed=4)),
}


@pytest.mark.parametrize("make", DRAWING.values(), ids=DRAWING.keys())
def test_captured_step_draws_the_random_numbers_of_keras_own(make: Callable[[], keras.Model]) -> None:
    stock = make()
    # Predicting draws nothing; a step that runs as ever, of a smaller batch, and another seed do.
    expected = fit(stock, validation_split=0.2)
    seed_of(stock).assign([7, 100])
    expected += fit(stock)
    model = make()
    step, graphs = captured(model)
    found = fit(model, validation_split=0.2)
    seed_of(model).assign([7, 100])
    assert found + fit(model) == expected
    assert step.refused is None and graphs[0].replays > 20
    np.testing.assert_array_equal(seed_of(model), seed_of(stock))


def seed_of(model: keras.Model) -> Any:
    """The state of the first seed generator of a model."""
    return next(variable for variable in model.variables if "seed_generator_state" in variable.path)


def test_captured_step_draws_anew_in_each_step_without_a_seed() -> None:
    model = model_of(keras.optimizers.SGD(0.0), layers.Dropout(0.5))
    step, graphs = captured(model)
    batch = [(torch.from_numpy(X[:B]), torch.from_numpy(Y[:B]))]
    losses = [float(model.train_function(batch)["loss"]) for _ in range(8)]
    assert step.refused is None and graphs[0].replays == 5
    # The metric is a mean over all steps; with no learning, only what is drawn can change it.
    assert len(set(losses)) == len(losses)


def test_refused_capture_leaves_no_dropout_mask_behind() -> None:
    # Keras's own loop over time reads a value, after the cell has drawn its masks.
    lstm = {"recurrent_dropout": 0.2, "seed": 1}
    expected = fit(model_of(lstm=lstm))
    model = model_of(lstm=lstm)
    step, graphs = captured(model)
    assert fit(model) == expected
    assert step.refused is not None and graphs[0].replays == 0


@pytest.mark.parametrize("kind", ["condition", "global seed", "drawn from what is drawn"])
def test_step_that_a_graph_cannot_do_runs_as_ever_and_says_why(kind: str) -> None:
    @keras.saving.register_keras_serializable("tests")
    class Layer(layers.Layer):
        def call(self, x: Any) -> Any:
            if kind == "condition":
                return x if x.is_meta or x.sum() > 100 else x * 1.5
            if kind == "global seed":
                return x + keras.random.normal(keras.ops.shape(x))
            drawn = keras.random.categorical(keras.ops.reshape(x, (-1, 8)), 1, seed=SEED)
            return x + keras.ops.reshape(keras.ops.cast(drawn, "float32"), (*keras.ops.shape(x)[:2], 1))

    stock, model = model_of(None, Layer()), model_of(None, Layer())
    step, graphs = captured(model)
    keras.utils.set_random_seed(0)
    SEED.state.assign([1, 0])
    expected = fit(stock)
    keras.utils.set_random_seed(0)
    SEED.state.assign([1, 0])
    assert fit(model) == expected
    assert step.refused is not None and "\n" not in step.refused
    assert ("random numbers" if "drawn" in kind else "reads a value") in step.refused
    assert [graph.replays for graph in graphs] == [0]


SEED = keras.random.SeedGenerator(1)


def test_batches_of_changing_shapes_take_the_graphs_of_those_that_come_no_more() -> None:
    model = model_of()
    step, graphs = captured(model)

    def train(length: int, times: int = 1) -> list[int]:
        for _ in range(times):
            model.train_function([(torch.from_numpy(X[:B, :length]), torch.from_numpy(Y[:B, :length]))])
        return [graph.replays for graph in graphs]

    # By turns there are graphs for two; the third would have to come again and again.
    assert [train(length) for _ in range(5) for length in (1, 2, 3)][-1] == [2, 2]
    assert train(3, 5) == [2, 2, 3]
    # That of length 1 had waited for the longest.
    assert train(2) == [2, 3, 3]
    assert train(1) == [2, 3, 3]
    assert step.refused is None


def test_capture_watches_a_device_that_keras_names_without_its_number(monkeypatch) -> None:
    made: list[Any] = []
    monkeypatch.setattr(torch_capture, "_constant", lambda value, *_: made.append(value))
    with torch_capture._NothingFromTheHost(torch.device("meta", 0), Draws(SeedStates())):
        with pytest.raises(NotCapturableError, match="reads a value"):
            torch.empty((), device="meta").item()
        for device in ("meta", None, "cpu"):
            torch.as_tensor([1.0, 2.0], device=device)
    assert made == [[1.0, 2.0]]


def test_batches_that_are_no_tensors_run_as_ever() -> None:
    model = model_of()
    step, graphs = captured(model)
    for _ in range(5):
        model.train_function([(X[:B], Y[:B])])
    assert not graphs and step.refused is None
