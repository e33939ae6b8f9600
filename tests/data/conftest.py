"""A small tokenizer file, made once for every test of tokenizers."""

import pytest
import tokenizers

PROSE = (
    "Well, Prince, so Genoa and Lucca are now just family estates.\n\n"
    "But I warn you, 'é' is not 😀:\n  never.\n"
)


@pytest.fixture(scope="session")
def byte_level() -> str:
    """A `tokenizer.json` that can encode any text, with tokens for pieces of `PROSE`."""
    made = tokenizers.Tokenizer(tokenizers.models.BPE())
    made.pre_tokenizer = tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=False)
    made.decoder = tokenizers.decoders.ByteLevel()
    trainer = tokenizers.trainers.BpeTrainer(
        vocab_size=360,
        show_progress=False,
        initial_alphabet=tokenizers.pre_tokenizers.ByteLevel.alphabet(),
        special_tokens=["<end>"],
    )
    made.train_from_iterator([PROSE * 5 + "\n\n\n" * 40], trainer)
    return made.to_str()
