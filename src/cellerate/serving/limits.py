"""The limits of a server: they bound each request, so that none can exhaust the machine."""

from __future__ import annotations

import dataclasses

from cellerate.settings import check_number


@dataclasses.dataclass(frozen=True)
class Limits:
    """The upper bounds of a server. A request beyond one is refused with an error that names the bound.

    Attributes:
        body_bytes: The bytes of a request's body, before and after decompression.
        header_bytes: The bytes of a request's first line and all headers.
        chunks: The parts of a body of unknown length.
        connections: Connections at once; fewer if the system allows the process fewer open files.
        receive_s: The seconds in which a client must send a request.
        request_s: The seconds in which a request must be answered.
        requests: Requests at once.
        sequences: Running and waiting texts per model.
        prompt_cache_bytes: The bytes of cached states after prompts per model.
        sequences_per_request: Texts per request: its prompts times `n`.
        prompt_tokens: The ids of a prompt.
        steps: The steps of a push to a session, and of a row of a prediction.
        answer_numbers: The numbers of an answer.
        max_tokens: The generated ids of one text.
        calls: Waiting predictions, forecasts and embeddings per model.
        pushes: Waiting pushes to sessions per model.
        sessions: Sessions per model.
        sessions_in_memory: Sessions per model whose state is in memory.
        session_ttl_s: The seconds after which an unused session ends.

    Raises:
        ConfigError: A bound is not above 0, or `prompt_cache_bytes` is below 0.
    """

    body_bytes: int = 16 << 20
    header_bytes: int = 32 << 10
    chunks: int = 100_000
    connections: int = 8192
    receive_s: float = 30
    request_s: float = 600
    requests: int = 4096
    sequences: int = 1024
    prompt_cache_bytes: int = 32 << 20
    sequences_per_request: int = 128
    prompt_tokens: int = 100_000
    steps: int = 100_000
    answer_numbers: int = 2_000_000
    max_tokens: int = 100_000
    calls: int = 1024
    pushes: int = 65_536
    sessions: int = 1_000_000
    sessions_in_memory: int = 100_000
    session_ttl_s: float = 3600

    def __post_init__(self) -> None:
        for field in dataclasses.fields(self):
            # A server needs everything except the cache.
            may_be_0 = field.name == "prompt_cache_bytes"
            check_number(
                field.name,
                getattr(self, field.name),
                at_least=0 if may_be_0 else None,
                above=None if may_be_0 else 0,
                whole=field.type is int,
            )
