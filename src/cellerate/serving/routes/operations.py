"""All operations of a server in one table, from which its routes and its OpenAPI document are made."""

from __future__ import annotations

from typing import Any, NamedTuple

from cellerate.serving.answers import Handler
from cellerate.serving.routes import general, sessions, tensorflow, v2
from cellerate.serving.routes.completions import CompletionRequest
from cellerate.serving.routes.embeddings import EmbeddingRequest
from cellerate.serving.routes.v2_tensors import InferRequest

_JSON, _LINES, _BYTES, _EVENTS = (
    "application/json",
    "application/jsonl",
    "application/octet-stream",
    "text/event-stream",
)
_PROMETHEUS = "text/plain"


class RouteDescription(NamedTuple):
    """A route, its requests and its answers.

    Attributes:
        method: The method of HTTP.
        path: The path, with parameters in braces.
        handler: Answers it.
        group: The protocol that it belongs to.
        text: A sentence on its effect.
        body: The form of its body; None for none.
        takes: The media types of its body.
        gives: The media types of its answer.
        status: The status of success.
    """

    method: str
    path: str
    handler: Handler
    group: str
    text: str
    body: Any = None
    takes: tuple[str, ...] = (_JSON,)
    gives: tuple[str, ...] = (_JSON,)
    status: int = 200

    @property
    def name(self) -> str:
        """A name that no other operation has."""
        return f"{self.method} {self.path}"


_OPENAI, _V2, _TF, _SESSIONS, _OTHER = (
    "OpenAI",
    "Open Inference Protocol V2",
    "TensorFlow Serving",
    "Sessions",
    "Server",
)
_MODEL, _V2_MODEL = "/v1/models/{name}", "/v2/models/{name}"
_V1_VERSION, _V2_VERSION = f"{_MODEL}/versions/{{version}}", f"{_V2_MODEL}/versions/{{version}}"
_SESSION = f"{_MODEL}/sessions/{{id}}"

OPERATIONS: tuple[RouteDescription, ...] = (
    RouteDescription("GET", "/healthz", general.health, _OTHER, "Whether the server answers."),
    RouteDescription(
        "GET", "/metrics", general.metrics, _OTHER, "Numbers for Prometheus.", gives=(_PROMETHEUS,)
    ),
    RouteDescription("GET", "/v1/models", general.models, _OPENAI, "The models."),
    RouteDescription(
        "POST",
        "/v1/completions",
        general.completions,
        _OPENAI,
        "Continues texts.",
        CompletionRequest,
        gives=(_JSON, _EVENTS),
    ),
    RouteDescription(
        "POST", "/v1/embeddings", general.embeddings, _OPENAI, "A vector a line.", EmbeddingRequest
    ),
    RouteDescription(
        "POST", "/tokenize", general.tokenize, _OTHER, "A text as ids.", general.TokenizeRequest
    ),
    RouteDescription(
        "POST", "/detokenize", general.detokenize, _OTHER, "Ids as a text.", general.DetokenizeRequest
    ),
    RouteDescription("GET", "/tokenizer_info", general.tokenizer_info, _OTHER, "What the ids are."),
    # Before the route of a model, whose name would match with the verb behind it.
    RouteDescription(
        "POST",
        f"{_MODEL}:predict",
        tensorflow.predict,
        _TF,
        "Computes what the model gives.",
        tensorflow.PredictRequest,
    ),
    RouteDescription(
        "POST",
        f"{_V1_VERSION}:predict",
        tensorflow.predict,
        _TF,
        "Computes what the model gives.",
        tensorflow.PredictRequest,
    ),
    RouteDescription("GET", f"{_MODEL}/metadata", tensorflow.metadata, _TF, "The inputs and outputs."),
    RouteDescription("GET", f"{_V1_VERSION}/metadata", tensorflow.metadata, _TF, "The inputs and outputs."),
    RouteDescription(
        "GET", _MODEL, general.model, f"{_OPENAI}, {_TF}", "A model, and whether it can be used."
    ),
    RouteDescription("GET", _V1_VERSION, general.model, _TF, "A model, and whether it can be used."),
    RouteDescription(
        "POST",
        f"{_MODEL}/forecast",
        general.forecast,
        _OTHER,
        "Forecasts what comes after rows, in the units of the data.",
        general.ForecastRequest,
    ),
    RouteDescription("GET", f"{_MODEL}/sessions", sessions.count, _SESSIONS, "How many sessions there are."),
    RouteDescription(
        "POST",
        f"{_MODEL}/sessions",
        sessions.begin,
        _SESSIONS,
        "Begins a session.",
        sessions.OpenRequest,
        status=201,
    ),
    RouteDescription(
        "POST",
        f"{_MODEL}/push",
        sessions.push_lines,
        _SESSIONS,
        "Pushes to many sessions: a push a line, and an answer a line.",
        sessions.PushLine,
        takes=(_LINES,),
        gives=(_LINES,),
    ),
    RouteDescription("GET", _SESSION, sessions.look, _SESSIONS, "Whether a session is there."),
    RouteDescription("DELETE", _SESSION, sessions.end, _SESSIONS, "Ends a session.", gives=(), status=204),
    RouteDescription(
        "POST",
        f"{_SESSION}/push",
        sessions.push,
        _SESSIONS,
        "Reads the next steps of a session.",
        sessions.PushRequest,
    ),
    RouteDescription("GET", f"{_SESSION}/state", sessions.take, _SESSIONS, "What a session remembers."),
    RouteDescription(
        "PUT",
        f"{_SESSION}/state",
        sessions.bring,
        _SESSIONS,
        "Begins a session with what another one remembered, or puts one back to it.",
        sessions.StateFormat,
    ),
    RouteDescription("GET", "/v2", v2.server, _V2, "The server."),
    RouteDescription("GET", "/v2/health/live", v2.live, _V2, "Whether the server answers."),
    RouteDescription("GET", "/v2/health/ready", v2.ready, _V2, "Whether all models can be used."),
    RouteDescription("POST", "/v2/repository/index", v2.index, _V2, "The models."),
    RouteDescription(
        "POST", "/v2/repository/models/{name}/load", v2.load, _V2, "Reads the file of a model again."
    ),
    # Before the route of a model, whose name would match.
    RouteDescription(
        "GET", "/v2/models/stats", v2.statistics, _V2, "The calls of all models, and their times."
    ),
    *(
        operation
        for path in (_V2_MODEL, _V2_VERSION)
        for operation in (
            RouteDescription("GET", path, v2.metadata, _V2, "The inputs and outputs."),
            RouteDescription(
                "GET", f"{path}/config", v2.config, _V2, "The inputs and outputs, as Triton says."
            ),
            RouteDescription(
                "GET", f"{path}/stats", v2.statistics, _V2, "The calls of a model, and their times."
            ),
            RouteDescription("GET", f"{path}/ready", v2.model_ready, _V2, "Whether a model can be used."),
            RouteDescription(
                "POST",
                f"{path}/infer",
                v2.infer,
                _V2,
                "Computes what the model gives, or pushes to a sequence.",
                InferRequest,
                takes=(_JSON, _BYTES),
                gives=(_JSON, _BYTES),
            ),
        )
    ),
)
"""The operations, in the order in which their paths are looked at."""
