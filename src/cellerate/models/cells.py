"""The recurrent layers that the builders take, by the names that Keras gives them in a model.

The options of the command line need them, so this module imports nothing heavy.
"""

from typing import Literal

Cell = Literal["lstm", "gru", "simple_rnn"]
