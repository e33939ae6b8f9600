"""Tokenizers: characters, bytes and the files of other libraries, and the vocabulary of a model that has none.

All that a packed model needs to read and write text.
"""

from cellerate.data.tokenizers.opening import open_tokenizer, tokenizer_from_config
from cellerate.data.tokenizers.tokenizer import (
    CODE_POINTS,
    CharacterTokenizer,
    Tokenizer,
    character_codes,
    check_text,
    narrowest_dtype,
)
from cellerate.data.tokenizers.vocabulary import HAS_OWN_VOCABULARY, Vocabulary, open_vocabulary

__all__ = [
    "CODE_POINTS",
    "HAS_OWN_VOCABULARY",
    "CharacterTokenizer",
    "Tokenizer",
    "Vocabulary",
    "character_codes",
    "check_text",
    "narrowest_dtype",
    "open_tokenizer",
    "open_vocabulary",
    "tokenizer_from_config",
]
