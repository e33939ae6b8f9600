"""Weights drawn at once are those that are drawn one by one, to the bit, for every model that is built here."""

import keras
import numpy as np
import pytest

from cellerate.models.autoencoder import build_autoencoder
from cellerate.models.forecast import build_forecast_model
from cellerate.models.text import build_text_model

pytestmark = [pytest.mark.keras, pytest.mark.backends]

MODELS = {
    "text": (build_text_model, (11,), {"embedding": 6, "units": 9}),
    "text of two layers": (
        build_text_model,
        (11,),
        {"units": (9, 7), "dropout": 0.1, "recurrent_dropout": 0.1, "layer_norm": True},
    ),
    "text with tied weights": (build_text_model, (11,), {"embedding": 6, "units": 9, "tie_weights": True}),
    "text in 16 bits": (build_text_model, (11,), {"units": 9, "dtype_policy": "mixed_bfloat16"}),
    "forecast": (build_forecast_model, (8, 3, 2, 1), {"target_columns": [1], "units": 5}),
    "forecast with everything": (
        build_forecast_model,
        (8, 3, 2, 2),
        {
            "target_columns": [0, 2],
            "units": 5,
            "layers": 2,
            "bidirectional": True,
            "dropout": 0.1,
            "quantiles": [0.1, 0.5, 0.9],
            "absolute": [1],
            "future": 2,
            "series": 3,
            "series_embedding": 4,
        },
    ),
    "autoencoder": (build_autoencoder, (11,), {"units": 5, "latent": 4, "decoder_dropout": 0.2}),
}


@pytest.mark.parametrize(("build", "arguments", "options"), MODELS.values(), ids=MODELS)
def test_weights_drawn_at_once_are_those_drawn_one_by_one(build, arguments, options):
    keras.utils.clear_session()  # or numbers in names go on
    at_once = build(*arguments, **options, seed=3)
    keras.utils.clear_session()
    one_by_one = build.__wrapped__(*arguments, **options, seed=3)
    assert len(at_once.variables) == len(one_by_one.variables)
    for found, expected in zip(at_once.variables, one_by_one.variables, strict=True):
        assert (found.path, found.dtype) == (expected.path, expected.dtype)
        assert np.array_equal(np.asarray(found), np.asarray(expected)), found.path
    assert at_once.get_config() == one_by_one.get_config()


def test_weights_without_a_seed_differ_from_model_to_model():
    first, second = (build_text_model(11, units=9).get_weights()[0] for _ in range(2))
    assert not np.array_equal(first, second)


@pytest.mark.skipif(keras.backend.backend() != "jax", reason="JAX compiles them")
def test_weights_are_drawn_by_one_compiled_program():
    import jax

    compiled = []

    def listen(event, duration, **_):
        if event == "/jax/core/compile/backend_compile_duration":
            compiled.append(duration)

    # Sizes that no other test has: JAX remembers what it compiled.
    jax.monitoring.register_event_duration_secs_listener(listen)
    try:
        build_text_model(37, embedding=19, units=23)
    finally:
        jax.monitoring.unregister_event_duration_listener(listen)
    assert len(compiled) == 1
