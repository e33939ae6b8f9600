"""The loop of a contestant of the forecasting cases: a line of JSON in, a line of JSON out (`processes.Process`).

It imports only the standard library, because the peers run it in their own environment.
"""

import json
import os
import sys
import traceback
from collections.abc import Callable, Mapping
from typing import Any

Job = Callable[..., dict[str, Any]]


def serve(open_jobs: Callable[[], tuple[Mapping[str, Job], dict[str, Any]]]) -> None:
    """Answer questions until there are no more.

    Args:
        open_jobs: Loads the libraries; returns the jobs by name, and the first answer, which describes the contestant.
    """
    # Redirect the output of libraries: standard output is for answers only.
    answers = os.fdopen(os.dup(1), "w", buffering=1)
    os.dup2(2, 1)

    def say(found: dict[str, Any]) -> None:
        answers.write(json.dumps(found) + "\n")

    try:
        jobs, about = open_jobs()
        say(about)
        for line in sys.stdin:
            question = json.loads(line)
            say(jobs[question.pop("job")](**question))
    except Exception as error:
        traceback.print_exc()
        say({"refused": f"{type(error).__name__}: {error}"[:300]})
