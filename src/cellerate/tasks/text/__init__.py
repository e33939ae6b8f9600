"""Text as a task: splitting, training a model of the next token, judging it and generating from it.

`train_on_text` trains; `load_text_model` opens what it saved.
"""

from cellerate.tasks.text.batches import check_text_model, predicts_every_step, text_sources
from cellerate.tasks.text.generating import generate_text
from cellerate.tasks.text.train import (
    TextModel,
    TextRun,
    TextTask,
    encoded_text,
    evaluate_text,
    load_text_model,
    text_loss,
    text_model_of,
    train_on_text,
)

__all__ = [
    "TextModel",
    "TextRun",
    "TextTask",
    "check_text_model",
    "encoded_text",
    "evaluate_text",
    "generate_text",
    "load_text_model",
    "predicts_every_step",
    "text_loss",
    "text_model_of",
    "text_sources",
    "train_on_text",
]
