"""Files of models in words: their facts, and a card of them."""

from cellerate.tasks.describe.facts import counts_of, file_info, settings_of
from cellerate.tasks.describe.model_card import CardFigure, check_card, write_card

__all__ = ["CardFigure", "check_card", "counts_of", "file_info", "settings_of", "write_card"]
