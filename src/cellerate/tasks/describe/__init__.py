"""Files of models in words: their facts, and a card of them."""

from cellerate.tasks.describe.facts import file_info
from cellerate.tasks.describe.model_card import CardFigure, write_card

__all__ = ["CardFigure", "file_info", "write_card"]
