"""The limits of a server: a client may ask for so much of everything, so that no request can take the machine."""

import dataclasses

from cellerate.settings import check_number


@dataclasses.dataclass(frozen=True)
class Limits:
    """The bounds of a server. What is beyond them is refused with an error that names the bound.

    Attributes:
        body_bytes: A request's body, also after it was decompressed.
        header_bytes: The head of a request, its first line and all headers.
        chunks: The parts in which a body of unknown length comes.
        connections: Connections at once; fewer where the system allows the process fewer open files.
        receive_s: How long a client may take to send a request.
        request_s: How long it may take to answer one.
        requests: Requests at once.
        sequences: Texts that are drawn or wait, a model.
        prompt_cache_bytes: The states after prompts that are remembered, a model.
        sequences_per_request: Texts that one request asks for: its prompts times `n`.
        prompt_tokens: A prompt, in ids.
        steps: The steps of a push to a session, and of a row of a prediction.
        answer_numbers: The numbers of an answer.
        max_tokens: What may be drawn for one text, in ids.
        calls: Predictions, forecasts and embeddings that wait, a model.
        pushes: Pushes to sessions that wait, a model.
        sessions: Sessions, a model.
        sessions_in_memory: Sessions whose state is kept in memory, a model.
        session_ttl_s: A session that was not used for so long ends.

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
            # A cache may be left out, everything else a server needs.
            may_be_0 = field.name == "prompt_cache_bytes"
            check_number(
                field.name,
                getattr(self, field.name),
                at_least=0 if may_be_0 else None,
                above=None if may_be_0 else 0,
                whole=field.type is int,
            )
