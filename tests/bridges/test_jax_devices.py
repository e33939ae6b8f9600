"""Our operations on several devices of JAX: each computes its own rows, and together they give what one device gives.

`make test-devices` runs this with four CPU devices.
"""

import os
import re
from typing import Any

import keras
import numpy as np
import pytest

if keras.backend.backend() != "jax" or "JAX_NUM_CPU_DEVICES" not in os.environ:
    pytest.skip("needs several devices of JAX: `make test-devices`", allow_module_level=True)

import jax
import jax.numpy as jnp
from jax.sharding import Mesh, NamedSharding, PartitionSpec

import cellerate
from cellerate.bridges import jax as bridge
from cellerate.kernels.dense import DENSE
from cellerate.kernels.lstm import cpu
from cellerate.kernels.lstm.spec import BATCH_AXES, LstmOptions
from cellerate.kernels.operation import Codes, CoreOperation

pytestmark = [pytest.mark.keras, pytest.mark.backends]

T, D, H, V = 6, 3, 7, 11
Arrays = dict[str, Any]

LSTMS = {
    "rows": ("x", "bias"),
    "states": ("x", "bias", "h0", "c0"),
    "lookup": ("ids", "embeddings", "bias", "h0", "c0"),
    "mask": ("x", "bias", "h0", "c0", "mask"),
    "dropout": ("x", "bias", "dropout", "recurrent_dropout"),
}
MESHES = {
    "four devices": ((4,), ("batch",), "batch"),
    "one axis of two": ((2, 2), ("batch", "model"), "batch"),
    "both axes": ((2, 2), ("batch", "model"), ("batch", "model")),
    "no axis": ((4,), ("batch",), None),
}


def lstm_arrays(names: tuple[str, ...], batch: int, dtype: str = "float32") -> Arrays:
    rng = np.random.default_rng(0)
    every = {
        "x": rng.normal(size=(batch, T, D)),
        "ids": rng.integers(0, V, (batch, T)).astype("int32"),
        "embeddings": rng.normal(size=(V, D)),
        "kernel": rng.normal(size=(D, 4 * H)) * 0.4,
        "recurrent_kernel": rng.normal(size=(H, 4 * H)) * 0.3,
        "bias": rng.normal(size=4 * H),
        "h0": rng.uniform(-1, 1, (batch, H)),
        "c0": rng.normal(size=(batch, H)),
        "mask": rng.random((batch, T)) < 0.6,
        "dropout": (rng.random((4, batch, D)) < 0.6) / 0.6,
        "recurrent_dropout": (rng.random((4, batch, H)) < 0.7) / 0.7,
    }
    kinds = {"ids": "int32", "mask": "bool", **dict.fromkeys(("x", "h0", "c0"), dtype)}
    wanted = (*names, "kernel", "recurrent_kernel")
    return {name: jnp.asarray(every[name], kinds.get(name, "float32")) for name in every if name in wanted}


def placed(arrays: Arrays, axes: dict[str, int], mesh: Mesh, along: Any) -> Arrays:
    """The arrays with their rows shared along an axis of the mesh."""

    def spec(name: str) -> PartitionSpec:
        return PartitionSpec(*[None] * axes[name], along) if name in axes else PartitionSpec()

    return {name: jax.device_put(array, NamedSharding(mesh, spec(name))) for name, array in arrays.items()}


def mesh_of(name: str) -> tuple[Mesh, Any]:
    shape, names, along = MESHES[name]
    return Mesh(np.array(jax.devices()).reshape(shape), names), along


def gradients(operation: CoreOperation, codes: Codes, arrays: Arrays) -> Any:
    """A compiled function that gives the results of an operation and the gradients of their weighted sum."""
    learnt = [name for name in operation.differentiable if name in arrays]

    def total(learnt: Arrays, rest: Arrays) -> Any:
        results = bridge.run(operation, {**rest, **learnt}, codes)
        weights = [
            jnp.sin(jnp.arange(found.size, dtype=found.dtype)).reshape(found.shape) for found in results
        ]
        return sum((found * weight).sum() for found, weight in zip(results, weights, strict=True)), results

    graded = jax.jit(jax.value_and_grad(total, has_aux=True))

    def run(arrays: Arrays) -> Any:
        return graded, ({n: arrays[n] for n in learnt}, {n: a for n, a in arrays.items() if n not in learnt})

    return run


def check_shared(operation: CoreOperation, codes: Codes, arrays: Arrays, mesh: str, atol: float) -> str:
    """Holds the results on a mesh against those of one device; returns the compiled program."""
    run = gradients(operation, codes, arrays)
    graded, given = run(arrays)
    expected = graded(*given)
    graded, given = run(placed(arrays, dict(operation.batch_axes), *mesh_of(mesh)))
    program = graded.lower(*given).compile()
    jax.tree.map(
        lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-5, atol=atol), program(*given), expected
    )
    return program.as_text()


def rows_computed(program: str) -> set[int]:
    """The rows of the batch in each call of the core."""
    calls = re.findall(r"= \(?\w+\[(\d+),[^=]* custom-call\(", program)
    assert calls, "the core is not called"
    return {int(rows) for rows in calls}


@pytest.mark.parametrize("mesh", MESHES)
@pytest.mark.parametrize("names", LSTMS.values(), ids=LSTMS)
def test_lstm_of_several_devices_is_that_of_one(names: tuple[str, ...], mesh: str) -> None:
    codes = cpu.codes(LstmOptions(), return_sequences=True)
    program = check_shared(cpu.LSTM, codes, lstm_arrays(names, 8), mesh, 2e-5)
    assert "all-gather" not in program
    assert "all-to-all" not in program


@pytest.mark.parametrize(
    ("mesh", "rows"), [("four devices", 2), ("one axis of two", 4), ("both axes", 2), ("no axis", 8)]
)
def test_each_device_computes_its_own_rows(mesh: str, rows: int) -> None:
    codes = cpu.codes(LstmOptions(), return_sequences=True)
    assert rows_computed(check_shared(cpu.LSTM, codes, lstm_arrays(LSTMS["states"], 8), mesh, 2e-5)) == {rows}


@pytest.mark.parametrize("batch", [1, 4, 6, 12, 36])
def test_batches_that_the_devices_divide_or_not(batch: int) -> None:
    codes = cpu.codes(LstmOptions(), return_sequences=False)
    mesh = "four devices" if batch % 4 == 0 else "one axis of two" if batch % 2 == 0 else "no axis"
    check_shared(cpu.LSTM, codes, lstm_arrays(LSTMS["mask"], batch), mesh, 2e-5)


def test_bfloat16() -> None:
    codes = cpu.codes(LstmOptions(go_backwards=True), return_sequences=True)
    check_shared(cpu.LSTM, codes, lstm_arrays(LSTMS["states"], 8, "bfloat16"), "four devices", 2e-2)


def test_dense() -> None:
    rng = np.random.default_rng(0)
    shapes = {"x": (8, D), "kernel": (D, H), "bias": (H,)}
    arrays = {name: jnp.asarray(rng.normal(size=shape), "float32") for name, shape in shapes.items()}
    program = check_shared(DENSE, (), arrays, "four devices", 1e-5)
    assert "all-gather" not in program
    assert rows_computed(program) == {2}


def test_rows_that_are_whole_where_what_is_made_of_them_is_shared() -> None:
    codes = cpu.codes(LstmOptions(), return_sequences=True)
    arrays = lstm_arrays(LSTMS["states"], 8)
    mesh, along = mesh_of("four devices")
    labels = jnp.arange(8.0 * T * H).reshape(8, T, H) % 7

    def loss(arrays: Arrays, labels: Any) -> Any:
        return ((bridge.run(cpu.LSTM, arrays, codes)[0] - labels) ** 2).sum()

    graded = jax.jit(jax.value_and_grad(loss))
    expected = graded(arrays, labels)
    whole = placed(arrays, {}, mesh, along)
    found = graded(whole, jax.device_put(labels, NamedSharding(mesh, PartitionSpec(along))))
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-3), found, expected)


def test_weights_that_are_shared_out_are_gathered() -> None:
    codes = cpu.codes(LstmOptions(), return_sequences=True)
    arrays = lstm_arrays(LSTMS["rows"], 8)
    mesh, along = mesh_of("one axis of two")
    given = placed(arrays, dict(BATCH_AXES), mesh, along)
    given["kernel"] = jax.device_put(arrays["kernel"], NamedSharding(mesh, PartitionSpec(None, "model")))
    run = jax.jit(lambda arrays: bridge.run(cpu.LSTM, arrays, codes))
    for found, expected in zip(run(given), run(arrays), strict=True):
        np.testing.assert_allclose(found, expected, atol=1e-6)


def test_vmap() -> None:
    codes = cpu.codes(LstmOptions(), return_sequences=True)
    arrays = lstm_arrays(LSTMS["rows"], 4)
    several = {name: jnp.stack([array, 2 * array]) for name, array in arrays.items()}
    found = jax.vmap(lambda arrays: bridge.run(cpu.LSTM, arrays, codes))(several)
    for n in range(2):
        expected = bridge.run(cpu.LSTM, {name: array[n] for name, array in several.items()}, codes)
        for one, other in zip(found, expected, strict=True):
            np.testing.assert_array_equal(one[n], other)


def model(vocabulary: int = V) -> keras.Model:
    keras.utils.set_random_seed(3)
    return cellerate.accelerate(
        keras.Sequential(
            [
                keras.layers.Input((T,), dtype="int32"),
                keras.layers.Embedding(vocabulary, 8, mask_zero=True, name="table"),
                keras.layers.Bidirectional(keras.layers.LSTM(H, return_sequences=True)),
                keras.layers.LSTM(H),
                keras.layers.Dense(vocabulary, name="head"),
            ]
        )
    )


def trained(vocabulary: int = V) -> tuple[list[float], float, keras.Model]:
    rng = np.random.default_rng(0)
    x, y = rng.integers(0, V, (64, T)).astype("int32"), rng.integers(0, V, 64)
    made = model(vocabulary)
    made.compile(keras.optimizers.Adam(0.1), keras.losses.SparseCategoricalCrossentropy(from_logits=True))
    losses = made.fit(x, y, batch_size=16, epochs=4, verbose=0, shuffle=False).history["loss"]
    return losses, made.evaluate(x, y, batch_size=16, verbose=0), made


def test_data_parallel_training_of_keras() -> None:
    expected, expected_loss, _ = trained()
    keras.distribution.set_distribution(keras.distribution.DataParallel())
    try:
        losses, loss, _ = trained()
    finally:
        keras.distribution.set_distribution(None)
    assert expected[0] - expected[-1] > 0.1, "nothing was learnt"
    np.testing.assert_allclose(losses, expected, rtol=1e-5)
    np.testing.assert_allclose(loss, expected_loss, rtol=1e-5)


def test_large_tables_that_keras_shares_out(tmp_path) -> None:
    expected, expected_loss, _ = trained(vocabulary=16)
    layout = keras.distribution.LayoutMap(
        keras.distribution.DeviceMesh((4,), ["batch"], keras.distribution.list_devices())
    )
    layout[".*table.*embeddings"] = ("batch", None)
    layout[".*head.*kernel"] = (None, "batch")
    keras.distribution.set_distribution(
        keras.distribution.ModelParallel(layout_map=layout, batch_dim_name="batch")
    )
    try:
        losses, loss, made = trained(vocabulary=16)
        whole = {v.path for v in made.trainable_variables if v.value.sharding.is_fully_replicated}
        cellerate.save_model(made, tmp_path / "m.keras")
    finally:
        keras.distribution.set_distribution(None)
    kept = {v.path: v.shape for v in made.trainable_variables if v.path not in whole}
    assert set(kept.values()) == {(16, 8), (H, 16)}
    assert expected[0] - expected[-1] > 0.1, "nothing was learnt"
    np.testing.assert_allclose(losses, expected, rtol=1e-5)
    np.testing.assert_allclose(loss, expected_loss, rtol=1e-5)
    again, _ = cellerate.load_model(tmp_path / "m.keras")
    for one, other in zip(again.trainable_variables, made.trainable_variables, strict=True):
        np.testing.assert_array_equal(one, np.asarray(other.value))
