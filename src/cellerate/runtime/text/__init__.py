"""Generating and scoring text: sampling, beams, batches of different lengths, prompts and streaming.

`NextTokenModel` is the model behind all of them; `Batcher` shares its steps among callers.
"""

from cellerate.runtime.text.batcher import Batcher, Ticket, Update
from cellerate.runtime.text.device import check_implementation
from cellerate.runtime.text.keras_generation import generate_ids
from cellerate.runtime.text.program_steps import ProgramSteps, id_counts
from cellerate.runtime.text.sampling import sampling_rules
from cellerate.runtime.text.scoring import score_ids
from cellerate.runtime.text.streaming import pieces
from cellerate.runtime.text.text_model import NextTokenModel

__all__ = [
    "Batcher",
    "NextTokenModel",
    "ProgramSteps",
    "Ticket",
    "Update",
    "check_implementation",
    "generate_ids",
    "id_counts",
    "pieces",
    "sampling_rules",
    "score_ids",
]
