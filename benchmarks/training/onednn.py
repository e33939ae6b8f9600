"""The primitives of oneDNN that torch calls for an LSTM, which prove that the contestant is oneDNN."""

import os
import subprocess
import sys

_SAY_PRIMITIVES = """
import torch
x, lstm = torch.randn(4, 8, 64), torch.nn.LSTM(64, 128, batch_first=True)
with torch.inference_mode():
    lstm(x)
    lstm.bfloat16()(x.bfloat16())
"""


def onednn_calls(source: str = _SAY_PRIMITIVES) -> list[str]:
    """The primitives that oneDNN logs for an LSTM of torch's: code and pass, such as "brgemm:avx512_core".

    Raises:
        RuntimeError: oneDNN computed nothing, so the contestant is not oneDNN.
    """
    done = subprocess.run(
        [sys.executable, "-c", source],
        check=True,
        capture_output=True,
        text=True,
        env=os.environ | {"ONEDNN_VERBOSE": "1"},
    )
    lines = (line.split(",") for line in done.stdout.splitlines() if ",exec,cpu,rnn," in line)
    found = dict.fromkeys(f"{fields[6]}, {fields[7]}" for fields in lines)
    if not found:
        raise RuntimeError("torch.nn.LSTM did not reach oneDNN's LSTM primitive on this machine.")
    return list(found)
