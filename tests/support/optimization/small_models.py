"""Models with random weights, and the texts and lines that they are for."""

from typing import Any

import numpy as np

# 804 characters, of which a quarter is held out: a first character and 20 windows of 10.
TEXT = ("".join(f"the {a} sat on the {b}.\n" for a in ("cat", "dog") for b in ("mat", "hat")) * 12)[:804]
LENGTH, WINDOW, HORIZON, ROWS = 10, 6, 2, 200
LINES = [
    f"{a} {b}{c}" for a in ("red", "old", "ten") for b in ("hat", "cow") for c in ("", "s", " now", "!")
] * 5


def filled(model: Any, seed: int = 1) -> Any:
    """Give a model the same weights on every backend, large enough for confident predictions."""
    random = np.random.default_rng(seed)
    model.set_weights([2 / len(w) ** 0.5 * random.normal(size=w.shape) for w in model.get_weights()])
    return model


def text_payload(**changes: Any) -> dict[str, Any]:
    from cellerate.data.tokenizers.tokenizer import CharacterTokenizer

    payload = {
        "tokenizer": CharacterTokenizer("".join(sorted(set(TEXT)))).to_config(),
        "length": LENGTH,
        "batch_size": 8,
        "validation_fraction": 0.25,
        "include": [],
        "exclude": [],
        "training": {"optimizer": "adam", "learning_rate": 0.01},
    }
    return payload | changes
