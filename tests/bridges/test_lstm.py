"""The native LSTM as each backend calls it, held against the oracle, with what is special to that backend."""

import functools
import time
from typing import Any

import keras
import numpy as np
import pytest
from keras import ops

from cellerate.kernels import native, operation
from cellerate.kernels.lstm import cpu, reference
from cellerate.kernels.lstm.spec import Arguments, LstmOptions
from cellerate.layers.fused import bridge

pytestmark = [
    pytest.mark.keras,
    pytest.mark.backends,
    # Keras's own convert_to_numpy calls np.array on a framework's tensor, which NumPy 2 warns about.
    pytest.mark.filterwarnings("ignore:__array__ implementation doesn't accept a copy keyword"),
]

BACKEND = keras.backend.backend()
jax_only = pytest.mark.skipif(BACKEND != "jax", reason="JAX's own")
torch_only = pytest.mark.skipif(BACKEND != "torch", reason="torch's own")
tensorflow_only = pytest.mark.skipif(BACKEND != "tensorflow", reason="TensorFlow's own")
B, T, D, H, V = 5, 23, 7, 13, 9
FLOORS = {"float32": (1e-6, 5e-6), "bfloat16": (5e-3, 2e-2)}
LAST_BITS = 8 * 2.0**-24
"""Outputs lie in [-1, 1]; inference divides less often than training, which keeps the gates by themselves."""
TRAINED = ("x", "embeddings", "kernel", "recurrent_kernel", "bias", "h0", "c0")
Arrays = dict[str, np.ndarray]


def arrays_of(
    *,
    lookup: bool = False,
    x_beside: bool = False,
    leave_out: tuple[str, ...] = (),
    add: tuple[str, ...] = (),
) -> Arrays:
    rng = np.random.default_rng(0)
    every = {
        "x": rng.normal(size=(B, T, D)),
        "ids": rng.integers(0, V, (B, T)),
        "embeddings": rng.normal(size=(V, D)),
        "kernel": rng.normal(size=(D, 4 * H)) * 0.4,
        "recurrent_kernel": rng.normal(size=(H, 4 * H)) * 0.3,
        "bias": rng.normal(size=4 * H),
        "h0": rng.uniform(-1, 1, (B, H)),
        "c0": rng.normal(size=(B, H)),
        "mask": rng.random((B, T)) < 0.6,
        "dropout": (rng.random((4, B, D)) < 0.6) / 0.6,
        "recurrent_dropout": (rng.random((4, B, H)) < 0.7) / 0.7,
    }
    every["mask"][1] = False
    if x_beside:
        every["x"][:] = np.nan
    names = [n for n in every if n not in ("mask", "dropout", "recurrent_dropout", *leave_out) or n in add]
    names = [n for n in names if n not in (("x",) * (not x_beside) if lookup else ("ids", "embeddings"))]
    kinds = {"ids": "int32", "mask": "bool"}
    return {name: every[name].astype(kinds.get(name, "float32")) for name in names}


def tensors_of(arrays: Arrays, dtype: str = "float32") -> dict[str, Any]:
    narrow = ("x", "h0", "c0")
    return {n: ops.convert_to_tensor(a, dtype=dtype if n in narrow else None) for n, a in arrays.items()}


def numpy_of(tensor: Any) -> np.ndarray:
    tensor = tensor.detach() if BACKEND == "torch" else tensor
    return np.asarray(ops.convert_to_numpy(ops.cast(tensor, "float32")), "float64")


def cotangents_of(results: Any) -> list[np.ndarray]:
    rng = np.random.default_rng(1)
    return [rng.normal(size=tuple(result.shape)).astype("float32") for result in results]


def loss_of(results: Any, used: tuple[int, ...] = (0, 1, 2)) -> Any:
    weights = [ops.convert_to_tensor(a) for a in cotangents_of(results)]
    return sum(ops.sum(ops.cast(results[n], "float32") * weights[n]) for n in used)


def layer(
    arrays: dict[str, Any], options: LstmOptions, sequences: bool, *, training: bool = True
) -> tuple[Any, ...]:
    return bridge().run(cpu.LSTM, arrays, cpu.codes(options, sequences), training=training)


def run(
    arrays: dict[str, Any], options: LstmOptions, sequences: bool = True, used: tuple[int, ...] = (0, 1, 2)
) -> tuple[list[Any], dict[str, Any]]:
    """The three results, and the gradients by name."""
    lstm = functools.partial(layer, options=options, sequences=sequences)
    trained = {name: a for name, a in arrays.items() if name in TRAINED}
    if BACKEND == "jax":
        import jax

        def loss(trained: dict[str, Any]) -> Any:
            results = lstm({**arrays, **trained})
            return loss_of(results, used), results

        gradients, results = jax.grad(loss, has_aux=True)(trained)
        return list(results), gradients
    if BACKEND == "torch":
        trained = {name: a.clone().requires_grad_() for name, a in trained.items()}
        results = lstm({**arrays, **trained})
        loss_of(results, used).backward()
        return list(results), {name: a.grad for name, a in trained.items()}
    import tensorflow as tf

    with tf.GradientTape() as tape:
        tape.watch(trained)
        results = lstm({**arrays, **trained})
        loss = loss_of(results, used)
    return list(results), tape.gradient(loss, trained)


def oracle(
    arrays: Arrays, options: LstmOptions, sequences: bool = True, used: tuple[int, ...] = (0, 1, 2)
) -> tuple[list[np.ndarray], dict[str, np.ndarray]]:
    given = dict(arrays)
    ids, table, x = (given.pop(name, None) for name in ("ids", "embeddings", "x"))
    x_beside = ids is not None and x is not None
    x = x if ids is None else table[ids]
    given = {"bias": None, "h0": None, "c0": None} | given
    done = reference.forward(Arguments(x=x, **given), options)
    results = [done.outputs if sequences else done.outputs[:, -1], done.h_T, done.c_T]
    weights = [a if n in used else None for n, a in enumerate(cotangents_of(results))]
    if not sequences and weights[0] is not None:
        last, weights[0] = weights[0], np.zeros_like(done.outputs)
        weights[0][:, -1] = last
    gradients = reference.backward(done, *weights)
    if ids is not None:
        gradients["embeddings"] = np.zeros_like(table, "float64")
        np.add.at(gradients["embeddings"], ids, gradients["x"])
    names = [name for name in arrays if name in TRAINED and not (name == "embeddings" and x_beside)]
    return results, {name: gradients[name] for name in names}


def rms(a: np.ndarray) -> float:
    return float(np.sqrt(np.mean(np.asarray(a) ** 2)))


ALL = ("mask", "recurrent_dropout")
CASES: dict[str, dict[str, Any]] = {
    "plain": {},
    "no-bias": {"leave_out": ("bias",)},
    "last": {"sequences": False},
    "outputs-only": {"used": (0,)},
    "h-only": {"used": (1,), "sequences": False},
    "c-only": {"used": (2,)},
    "backwards": {"options": LstmOptions(go_backwards=True)},
    "activations": {"options": LstmOptions("softsign", "hard_sigmoid")},
    "previous-output": {"add": ALL, "options": LstmOptions(masked_output="previous_output")},
    "previous-state": {"add": ALL, "options": LstmOptions(masked_output="previous_state", go_backwards=True)},
    "zero-last": {"add": ALL, "options": LstmOptions(masked_output="zero"), "sequences": False},
    "dropouts": {"add": ("dropout", "recurrent_dropout")},
    "dropout-masked": {"add": ("dropout", "mask"), "options": LstmOptions(go_backwards=True)},
    "lookup": {"lookup": True},
    "x-beside-a-lookup": {"lookup": True, "x_beside": True, "add": ALL},
    "lookup-everything": {"lookup": True, "add": ALL, "options": LstmOptions("softsign", go_backwards=True)},
}


@pytest.mark.parametrize("dtype", FLOORS)
@pytest.mark.parametrize("name", CASES)
def test_lstm_equals_the_oracle(name: str, dtype: str) -> None:
    case = dict(CASES[name])
    arrays = arrays_of(**{k: case.pop(k) for k in ("lookup", "x_beside", "leave_out", "add") if k in case})
    options = case.pop("options", LstmOptions())
    results, gradients = run(tensors_of(arrays, dtype), options, **case)
    expected, expected_gradients = oracle(arrays, options, **case)
    forward, backward = FLOORS[dtype]
    for tensor, exact in zip(results, expected, strict=True):
        assert keras.backend.standardize_dtype(tensor.dtype) == dtype
        assert tuple(tensor.shape) == exact.shape
        assert rms(numpy_of(tensor) - exact) <= forward * rms(exact)
    if "x" in arrays and "ids" in arrays:
        # The gradient of x leads to the embeddings, which have none of their own here. JAX then has zeros.
        own = gradients.pop("embeddings")
        assert own is None or not numpy_of(own).any()
    assert gradients.keys() == expected_gradients.keys()
    for argument, exact in expected_gradients.items():
        assert keras.backend.standardize_dtype(gradients[argument].dtype) in (dtype, "float32")
        assert rms(numpy_of(gradients[argument]) - exact) <= backward * rms(exact), argument


@tensorflow_only
@pytest.mark.parametrize("graph", [False, True])
def test_inference_on_tensorflow_keeps_nothing_and_can_be_differentiated(
    monkeypatch: pytest.MonkeyPatch, graph: bool
) -> None:
    import tensorflow as tf

    arrays, kept = tensors_of(arrays_of()), []
    forward = operation.forward

    def noted(*given: Any, **keywords: Any) -> Any:
        kept.append(keywords["keep"])
        return forward(*given, **keywords)

    monkeypatch.setattr(operation, "forward", noted)

    def slope(training: bool) -> tuple[Any, Any]:
        with tf.GradientTape() as tape:
            tape.watch(arrays["x"])
            outputs = layer(arrays, LstmOptions(), True, training=training)[0]
        return outputs, tape.gradient(outputs, arrays["x"])

    slope = tf.function(slope) if graph else slope
    wanted = [numpy_of(one) for one in slope(True)]
    assert kept == [True]
    layer(arrays, LstmOptions(), True, training=False)
    assert kept == [True, False]
    outputs, gradient = slope(False)
    np.testing.assert_allclose(numpy_of(outputs), wanted[0], rtol=0, atol=LAST_BITS)
    np.testing.assert_array_equal(numpy_of(gradient), wanted[1])
    # In a graph nothing says which of the two is first.
    assert kept[:2] == [True, False] and sorted(kept[2:]) == [False, True]


def test_two_runs_give_the_same_bits() -> None:
    arrays = tensors_of(arrays_of(add=ALL))
    (first, first_gradients), (second, second_gradients) = (run(arrays, LstmOptions()) for _ in range(2))
    for a, b in zip([*first, *first_gradients.values()], [*second, *second_gradients.values()], strict=True):
        np.testing.assert_array_equal(numpy_of(a), numpy_of(b))


@pytest.mark.parametrize(
    ("name", "shape"), [("kernel", (D + 1, 4 * H)), ("h0", (B, H + 1)), ("mask", (B, T - 1))]
)
def test_wrong_shape_is_refused_with_its_name_and_both_shapes(name: str, shape: tuple[int, int]) -> None:
    arrays = arrays_of(add=("mask",))
    right = arrays[name].shape
    arrays[name] = np.ones(shape, arrays[name].dtype)
    with pytest.raises(Exception, match=f"{name}:? ") as raised:
        keras.tree.map_structure(numpy_of, layer(tensors_of(arrays), LstmOptions(), True))
    assert str(shape) in str(raised.value) and str(right) in str(raised.value)


def test_id_beyond_the_table_is_refused() -> None:
    arrays = arrays_of(lookup=True)
    arrays["ids"][2, 3] = V
    with pytest.raises(Exception, match=r"ids.*\[0, 9\).*got 9"):
        keras.tree.map_structure(numpy_of, layer(tensors_of(arrays), LstmOptions(), True))


def test_second_derivative_is_refused_and_not_left_out() -> None:
    arrays = tensors_of(arrays_of())

    def outputs(x: Any) -> Any:
        return layer({**arrays, "x": x}, LstmOptions(), True)[0]

    with pytest.raises(Exception, match=r"cannot be differentiated|first derivatives only"):
        if BACKEND == "jax":
            import jax

            def slope(x: Any) -> Any:
                return ops.sum(jax.grad(lambda x: ops.sum(outputs(x) ** 2))(x) ** 2)

            jax.grad(slope)(arrays["x"])
        elif BACKEND == "torch":
            import torch

            x = arrays["x"].requires_grad_()
            (slope,) = torch.autograd.grad((outputs(x) ** 2).sum(), x, create_graph=True)
            (slope**2).sum().backward()
        else:
            import tensorflow as tf

            with tf.GradientTape() as outer:
                outer.watch(arrays["x"])
                with tf.GradientTape() as inner:
                    inner.watch(arrays["x"])
                    loss = ops.sum(outputs(arrays["x"]) ** 2)
                steepness = ops.sum(inner.gradient(loss, arrays["x"]) ** 2)
            outer.gradient(steepness, arrays["x"])


@jax_only
def test_lstm_under_the_transformations_of_jax_gives_the_same() -> None:
    import jax

    arrays = tensors_of(arrays_of(add=ALL))
    expected, expected_gradients = run(arrays, LstmOptions())

    def loss(trained: dict[str, Any], x: Any) -> Any:
        return loss_of(layer({**arrays, **trained, "x": x}, LstmOptions(), True))

    trained = {n: a for n, a in arrays.items() if n in expected_gradients and n != "x"}
    plain = jax.grad(loss)(trained, arrays["x"])
    ways = {
        "jit": jax.jit(jax.grad(loss)),
        "grad of jit": jax.grad(jax.jit(loss)),
        "checkpoint": jax.jit(jax.grad(jax.checkpoint(loss))),
        "vmap": lambda *a: jax.tree.map(
            lambda g: g[1], jax.vmap(jax.grad(loss), (None, 0))(a[0], ops.stack([a[1] * 0, a[1]]))
        ),
        "grad of vmap": jax.grad(lambda t, x: jax.vmap(loss, (None, 0))(t, x[None])[0]),
    }
    for name, way in ways.items():
        for argument, gradient in way(trained, arrays["x"]).items():
            assert rms(numpy_of(gradient - plain[argument])) <= 1e-6 * rms(numpy_of(plain[argument])), name
    batch = ops.stack([arrays["x"], arrays["x"] + 1])
    many = jax.vmap(lambda x: layer({**arrays, "x": x}, LstmOptions(), True)[0])(batch)
    np.testing.assert_allclose(numpy_of(many[0]), numpy_of(expected[0]), rtol=0, atol=LAST_BITS)
    shapes = jax.eval_shape(lambda a: layer(a, LstmOptions(), True), arrays)
    assert [s.shape for s in shapes] == [(B, T, H), (B, H), (B, H)]


@jax_only
def test_program_compiled_ahead_runs_and_keeps_nothing_for_inference() -> None:
    import jax

    arrays = tensors_of(arrays_of())
    function = jax.jit(lambda a: layer(a, LstmOptions(), True))
    text = function.lower(arrays).as_text()
    assert text.count('call = "lstm_forward"') == 1 and "ui8>" not in text
    compiled = function.lower(arrays).compile()
    found, right = compiled(arrays)[0], run(arrays, LstmOptions())[0][0]
    np.testing.assert_allclose(numpy_of(found), numpy_of(right), rtol=0, atol=LAST_BITS)


@torch_only
def test_backward_twice_through_the_same_graph_gives_the_same() -> None:
    import torch

    arrays = tensors_of(arrays_of(add=ALL))
    x = arrays["x"].requires_grad_()
    loss = loss_of(layer(arrays, LstmOptions(), True))
    first, second = (torch.autograd.grad(loss, x, retain_graph=True)[0] for _ in range(2))
    np.testing.assert_array_equal(numpy_of(first), numpy_of(second))


@torch_only
def test_idle_threads_of_torch_sleep_once_the_core_has_run() -> None:
    import torch

    if torch.get_num_threads() < 2:
        pytest.skip("torch has one thread here")
    layer(tensors_of(arrays_of()), LstmOptions(), True)
    large = torch.zeros(1 << 22)

    def busy_while_idle() -> float:
        large.add_(1)  # by all of torch's threads
        start = time.process_time()
        time.sleep(0.002)
        return time.process_time() - start

    # Spinning threads take more than 2 ms about every second time.
    assert sum(busy_while_idle() for _ in range(20)) < 0.012


@torch_only
@pytest.mark.parametrize("gradient", [True, False])
def test_torch_keeps_memory_for_backward_only_where_there_is_one(
    gradient: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    import torch

    kept, call = [], native.core().call
    monkeypatch.setattr(native.core(), "call", lambda *a: kept.append(a[3][3] is not None) or call(*a))
    arrays = tensors_of(arrays_of())
    layer(arrays, LstmOptions(), True)
    arrays["kernel"].requires_grad_()
    with torch.set_grad_enabled(gradient):
        outputs, _, _ = layer(arrays, LstmOptions(), True)
    assert kept == [False, gradient] and outputs.requires_grad is gradient


@torch_only
def test_tensors_of_any_layout_give_the_same() -> None:
    arrays = tensors_of(arrays_of(add=ALL))
    expected, gradients = run(arrays, LstmOptions())
    turned = {n: a.mT.contiguous().mT if a.ndim > 1 else a for n, a in arrays.items()}
    assert not turned["kernel"].is_contiguous()
    got, got_gradients = run(turned, LstmOptions())
    for a, b in zip([*got, *got_gradients.values()], [*expected, *gradients.values()], strict=True):
        np.testing.assert_array_equal(numpy_of(a), numpy_of(b))


@torch_only
@pytest.mark.parametrize("name", ["plain", "last", "lookup"])
def test_operators_keep_the_rules_of_torch(name: str) -> None:
    import torch
    from torch.library import opcheck

    case = CASES[name]
    arrays = tensors_of(arrays_of(lookup=case.get("lookup", False)))
    layer(arrays, LstmOptions(), True)  # registers them
    given = [arrays.get(argument) for argument in cpu.LSTM.arguments]
    for argument, tensor in zip(cpu.LSTM.arguments, given, strict=True):
        if argument in TRAINED and tensor is not None:
            tensor.requires_grad_()
    codes = cpu.codes(LstmOptions(), case.get("sequences", True))
    tests = ("test_schema", "test_autograd_registration", "test_faketensor")
    opcheck(torch.ops.cellerate.lstm_forward, (*given, codes, True), test_utils=tests)
    opcheck(torch.ops.cellerate.lstm_forward, (*given, codes, False), test_utils=tests)


@torch_only
@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
def test_compiled_by_torch_it_gives_the_same() -> None:
    import torch

    arrays = tensors_of(arrays_of(add=ALL))
    _, gradients = run(arrays, LstmOptions())
    trained = {n: arrays[n].clone().requires_grad_() for n in gradients}
    loss = torch.compile(lambda given: loss_of(layer(given, LstmOptions(), True)))
    loss({**arrays, **trained}).backward()
    for name, gradient in gradients.items():
        np.testing.assert_allclose(numpy_of(trained[name].grad), numpy_of(gradient), atol=1e-6)


@tensorflow_only
def test_function_of_unknown_shape_and_persistent_tape_give_the_same() -> None:
    import tensorflow as tf

    arrays = tensors_of(arrays_of(add=ALL))
    expected, gradients = run(arrays, LstmOptions())
    free = {"x": (None, None, D), "mask": (None, None), "h0": (None, H), "c0": (None, H)}
    free["recurrent_dropout"] = (4, None, H)
    names = [n for n in arrays if n in free]

    @tf.function(input_signature=[tf.TensorSpec(free[n], arrays[n].dtype) for n in names])
    def run_in_graph(*given: Any) -> Any:
        trained = {**arrays, **dict(zip(names, given, strict=True))}
        with tf.GradientTape(persistent=True) as tape:
            tape.watch([trained["x"], trained["kernel"]])
            results = layer(trained, LstmOptions(), True)
            loss = loss_of([tf.ensure_shape(r, e.shape) for r, e in zip(results, expected, strict=True)])
        assert [len(r.shape) for r in results] == [3, 2, 2] and results[0].shape[2] == H
        return results[0], tape.gradient(loss, trained["x"]), tape.gradient(loss, trained["kernel"])

    wanted = [expected[0], gradients["x"], gradients["kernel"]]
    for a, b in zip(run_in_graph(*[arrays[n] for n in names]), wanted, strict=True):
        np.testing.assert_array_equal(numpy_of(a), numpy_of(b))


def test_many_calls_at_once_give_what_each_gives_alone() -> None:
    from concurrent.futures import ThreadPoolExecutor

    arrays = [tensors_of({**arrays_of(add=ALL), "x": arrays_of()["x"] + n}) for n in range(8)]

    def call(given: dict[str, Any]) -> np.ndarray:
        return numpy_of(layer(given, LstmOptions(), True)[0])

    alone = [call(given) for given in arrays]
    with ThreadPoolExecutor(4) as pool:
        for together, expected in zip(pool.map(call, arrays), alone, strict=True):
            np.testing.assert_array_equal(together, expected)
