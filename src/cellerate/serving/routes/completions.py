"""`POST /v1/completions`, as OpenAI's clients ask for it: texts, many at once, whole or as they are drawn."""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import functools
import secrets
import time
from collections.abc import AsyncGenerator, Sequence
from typing import Annotated, Any

import msgspec
import numpy as np
from starlette.requests import Request
from starlette.responses import Response, StreamingResponse

from cellerate.errors import CellerateError, DataError
from cellerate.kernels.decoder.sampling import SamplingRules
from cellerate.runtime.text import sampling_rules
from cellerate.serving.answer_size import check_numbers
from cellerate.serving.answers import RequestError, aside, json_answer, status_of, unless_gone
from cellerate.serving.limits import Limits
from cellerate.serving.metrics import Metrics, TextTimes
from cellerate.serving.models import Served
from cellerate.serving.routes.token_details import Details, TokenReader

# Ids of a prompt that are read in one call for their probabilities: some 20 ms.
_READ_AT_ONCE = 256

Whole = Annotated[int, msgspec.Meta(ge=0)]


UNSUPPORTED = frozenset(
    {
        "tools",
        "tool_choice",
        "parallel_tool_calls",
        "functions",
        "function_call",
        "response_format",
        "guided_json",
        "guided_regex",
        "grammar",
        "json_schema",
        "messages",
        "min_tokens",
        "ignore_eos",
        "stop_token_ids",
        "bad_words",
        "logit_processors",
        "logits_processors",
        "use_beam_search",
        "length_penalty",
        "typical_p",
        "mirostat",
        "repeat_penalty",
        "prompt_logprobs",
        "max_completion_tokens",
    }
)
"""Fields of other servers that would change the text: refused, unless they ask for nothing."""
WITHOUT_EFFECT = frozenset(
    {
        "user",
        "metadata",
        "store",
        "service_tier",
        "safety_identifier",
        "prompt_cache_key",
        "prompt_cache_retention",
        "cache_prompt",
        "keep_alive",
        "priority",
        "request_id",
        "skip_special_tokens",
        "spaces_between_special_tokens",
        "add_special_tokens",
        "detokenize",
    }
)
"""Fields that clients send and that change no text: passed over."""


class StreamOptions(msgspec.Struct):
    """The options of a stream."""

    include_usage: bool = False


class CompletionRequest(msgspec.Struct):
    """A request for continuations."""

    model: str
    prompt: str | Annotated[list[str | Whole | list[Whole]], msgspec.Meta(min_length=1)]
    max_tokens: Annotated[int, msgspec.Meta(ge=0)] | None = 16
    temperature: Annotated[float, msgspec.Meta(ge=0, le=100)] | None = 1.0
    top_p: Annotated[float, msgspec.Meta(gt=0, le=1)] | None = 1.0
    top_k: Annotated[int, msgspec.Meta(ge=-1)] | None = None
    min_p: Annotated[float, msgspec.Meta(ge=0, le=1)] | None = 0.0
    repetition_penalty: Annotated[float, msgspec.Meta(gt=0, le=100)] | None = 1.0
    n: Annotated[int, msgspec.Meta(ge=1)] | None = 1
    best_of: Annotated[int, msgspec.Meta(ge=1)] | None = None
    seed: Annotated[int, msgspec.Meta(ge=-(2**63), le=2**63 - 1)] | None = None
    stop: str | Annotated[list[str], msgspec.Meta(max_length=16)] | None = None
    echo: bool | None = False
    logprobs: Annotated[int, msgspec.Meta(ge=0, le=20)] | None = None
    stream: bool | None = False
    stream_options: StreamOptions | None = None
    frequency_penalty: float | None = 0.0
    presence_penalty: float | None = 0.0
    logit_bias: dict[str, float] | None = None
    suffix: str | None = None
    user: str | None = None


@dataclasses.dataclass
class _Choice:
    """One text to generate.

    Attributes:
        index: Its index among the choices of the answer.
        prompt: The prompt.
        ids: (N,) the ids of the prompt.
        rules: The sampling settings.
    """

    index: int
    prompt: str
    ids: np.ndarray
    rules: SamplingRules


async def complete(
    asked: CompletionRequest, served: Served, request: Request, limits: Limits, metrics: Metrics
) -> Response:
    """Answers a request for continuations.

    Raises:
        CellerateError: The request cannot be answered.
    """
    prompts = _prompts(asked.prompt)
    choices = await aside(functools.partial(_choices, asked, prompts, served, limits), sum(map(len, prompts)))
    job = _Job(asked, served, choices, limits, metrics)
    if not asked.stream:
        return json_answer(await unless_gone(request, job.whole()))
    pieces = job.pieces()
    # Raised before streaming starts, so that an error of the request still has its own status.
    first = await unless_gone(request, anext(pieces))
    return StreamingResponse(_events(first, pieces), media_type="text/event-stream")


class _Job:
    """The texts of one request while they are drawn."""

    def __init__(
        self,
        asked: CompletionRequest,
        served: Served,
        choices: Sequence[_Choice],
        limits: Limits,
        metrics: Metrics,
    ) -> None:
        assert served.texts is not None  # noqa: S101 (_choices has looked)
        self._asked, self._served, self._choices, self._texts = asked, served, choices, served.texts
        self._metrics = metrics
        self._end = time.monotonic() + limits.request_s
        self._id = f"cmpl-{secrets.token_hex(12)}"
        self._created = int(time.time())
        most = limits.max_tokens
        wanted = 16 if asked.max_tokens is None else asked.max_tokens
        if wanted > most:
            raise RequestError(400, f"max_tokens is {wanted}; at most {most} are drawn here.")
        self._max_tokens = wanted
        if asked.logprobs is not None and not asked.stream:
            ids = sum(wanted + (len(choice.ids) if asked.echo else 0) for choice in choices)
            check_numbers(ids * (asked.logprobs + 1), limits)
        self._stop = [asked.stop] if isinstance(asked.stop, str) else asked.stop or []
        self._prompt_tokens = sum({id(each.ids): len(each.ids) for each in choices}.values())
        metrics.prompt_tokens.labels(served.name).inc(self._prompt_tokens)
        self._drawn = 0

    async def whole(self) -> dict[str, Any]:
        """The answer when every text has ended."""
        try:
            async with asyncio.TaskGroup() as group:
                tasks = [group.create_task(self._text(choice)) for choice in self._choices]
        except ExceptionGroup as errors:
            raise errors.exceptions[0] from None  # the others were cancelled because of it
        return self._answer([task.result() for task in tasks]) | {"usage": self._usage()}

    async def pieces(self) -> AsyncGenerator[dict[str, Any]]:
        """The parts of the answer as they are drawn."""
        with_usage = self._asked.stream_options is not None and self._asked.stream_options.include_usage
        extra: dict[str, Any] = {"usage": None} if with_usage else {}
        async with contextlib.aclosing(_merged([self._parts(choice) for choice in self._choices])) as parts:
            async for part in parts:
                yield self._answer([part]) | extra
        if with_usage:
            yield self._answer([]) | {"usage": self._usage()}

    async def _text(self, choice: _Choice) -> dict[str, Any]:
        texts, details, reason = [], Details(), None
        async with contextlib.aclosing(self._parts(choice)) as parts:
            async for part in parts:
                texts.append(part["text"])
                details.add(part["logprobs"])
                reason = part["finish_reason"]
        return self._part(choice, "".join(texts), details.all, reason)

    async def _parts(self, choice: _Choice) -> AsyncGenerator[dict[str, Any]]:
        """The parts of one text."""
        asked, tokenizer, calls = self._asked, self._served.model.tokenizer, self._served.calls
        times = TextTimes(self._metrics, self._served.name)
        reader = None
        if asked.logprobs is not None:
            reader = TokenReader(self._served.model.steps, tokenizer, asked.logprobs, choice.prompt)
            begin = Details()
            # In parts, because the calls of others wait meanwhile.
            for first in range(0, len(choice.ids), _READ_AT_ONCE):
                ids = choice.ids[first : first + _READ_AT_ONCE]
                read = functools.partial(reader.prompt, ids, tell=bool(asked.echo))
                begin.add(await calls.run(read, self._left))
            if asked.echo:
                yield self._part(choice, choice.prompt, begin.all, None)
        elif asked.echo:
            yield self._part(choice, choice.prompt, None, None)
        if self._max_tokens == 0:
            yield self._part(choice, "", None, "length")
            return
        updates = self._texts.complete(
            choice.ids,
            max_tokens=self._max_tokens,
            rules=choice.rules,
            stop=self._stop,
            deadline_s=self._left,
        )
        async with contextlib.aclosing(updates):
            async for update in updates:
                self._drawn += len(update.ids)
                times.update(len(update.ids), update.reason is not None)
                details = None
                if reader is not None and len(update.ids):
                    details = await calls.run(functools.partial(reader.drawn, update.ids), self._left)
                if update.text or details or update.reason:
                    yield self._part(choice, update.text, details, _REASONS.get(update.reason or ""))

    @property
    def _left(self) -> float:
        return max(0.0, self._end - time.monotonic())

    def _part(self, choice: _Choice, text: str, details: Any, reason: str | None) -> dict[str, Any]:
        return {"index": choice.index, "text": text, "logprobs": details, "finish_reason": reason}

    def _answer(self, choices: list[dict[str, Any]]) -> dict[str, Any]:
        return {
            "id": self._id,
            "object": "text_completion",
            "created": self._created,
            "model": self._served.name,
            "choices": choices,
        }

    def _usage(self) -> dict[str, int]:
        return {
            "prompt_tokens": self._prompt_tokens,
            "completion_tokens": self._drawn,
            "total_tokens": self._prompt_tokens + self._drawn,
        }


_REASONS = {"length": "length", "stop": "stop", "cancelled": "stop"}


def _choices(
    asked: CompletionRequest, prompts: Sequence[str | list[int]], served: Served, limits: Limits
) -> list[_Choice]:
    """Return the texts that a request asks for: `n` for each prompt."""
    if served.texts is None:
        raise RequestError(400, f"{served.name} does not continue texts; it is {served.kind}.")
    for name in ("frequency_penalty", "presence_penalty", "logit_bias", "suffix"):
        if getattr(asked, name):
            raise RequestError(400, f"{name} is not supported: leave it out.")
    count = asked.n or 1
    if asked.best_of not in (None, count):
        raise RequestError(400, f"best_of is {asked.best_of}; only n ({count}) is supported: leave it out.")
    if len(prompts) * count > limits.sequences_per_request:
        raise RequestError(
            400,
            f"{len(prompts)} prompts times n = {count} are {len(prompts) * count} texts; one request may ask for "
            f"{limits.sequences_per_request}.",
        )
    rules = sampling_rules(
        temperature=1.0 if asked.temperature is None else asked.temperature,
        top_k=asked.top_k if (asked.top_k or 0) > 0 else None,
        top_p=asked.top_p,
        min_p=asked.min_p or 0.0,
        repetition_penalty=1.0 if asked.repetition_penalty is None else asked.repetition_penalty,
        # Seeds may be negative in this protocol.
        seed=None if asked.seed is None else asked.seed % 2**64,
    )
    choices: list[_Choice] = []
    for prompt in prompts:
        text, ids = _encoded(prompt, served)
        if len(ids) > limits.prompt_tokens:
            raise RequestError(
                400,
                f"a prompt has {len(ids)} {served.model.tokenizer.unit}; at most {limits.prompt_tokens} are read.",
            )
        for _ in range(count):
            place = len(choices)
            choices.append(_Choice(place, text, ids, dataclasses.replace(rules, stream=place)))
    return choices


def _prompts(given: Any) -> list[str | list[int]]:
    """The prompts of a request, which may be a text, ids, or a list of either."""
    if isinstance(given, str):
        return [given]
    if all(isinstance(each, int) for each in given):
        return [given]
    if all(isinstance(each, str) for each in given) or all(isinstance(each, list) for each in given):
        return list(given)
    raise RequestError(
        400, "prompt mixes texts and ids; expected a text, ids, a list of texts or a list of ids."
    )


def _encoded(prompt: str | list[int], served: Served) -> tuple[str, np.ndarray]:
    tokenizer = served.model.tokenizer
    if isinstance(prompt, str):
        text = tokenizer.prompt_text(prompt)
        ids = tokenizer.encode(text)
    else:
        if max(prompt, default=0) >= tokenizer.vocabulary_size:
            raise DataError(
                f"the prompt holds the id {max(prompt)}; ids are below {tokenizer.vocabulary_size}."
            )
        ids = np.array(prompt, np.int32)
        text = tokenizer.decode(ids)
    if len(ids) == 0:
        raise RequestError(400, "the prompt is empty: give at least one character to continue.")
    return text, ids


async def _merged(streams: Sequence[AsyncGenerator[dict[str, Any]]]) -> AsyncGenerator[dict[str, Any]]:
    """The results of several streams, as they come."""
    if len(streams) == 1:
        async with contextlib.aclosing(streams[0]) as only:
            async for part in only:
                yield part
        return
    # A client that does not read makes the streams wait.
    queue: asyncio.Queue[dict[str, Any] | Exception | None] = asyncio.Queue(len(streams))

    async def pump(stream: AsyncGenerator[dict[str, Any]]) -> None:
        try:
            async with contextlib.aclosing(stream):
                async for part in stream:
                    await queue.put(part)
            await queue.put(None)
        except Exception as error:
            await queue.put(error)

    tasks = [asyncio.create_task(pump(stream)) for stream in streams]
    try:
        left = len(tasks)
        while left:
            found = await queue.get()
            if isinstance(found, Exception):
                raise found
            if found is None:
                left -= 1
            else:
                yield found
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


async def _events(first: dict[str, Any], rest: AsyncGenerator[dict[str, Any]]) -> AsyncGenerator[bytes]:
    """Send parts as server-sent events; a late error is an event, too, because the status is sent already."""
    async with contextlib.aclosing(rest):
        try:
            yield _event(first)
            async for part in rest:
                yield _event(part)
        except CellerateError as error:
            status, message, _ = status_of(error)
            kind = "invalid_request_error" if status < 500 else "server_error"
            yield _event({"error": {"message": message, "type": kind, "param": None, "code": status}})
        yield b"data: [DONE]\n\n"


def _event(value: Any) -> bytes:
    return b"data: " + msgspec.json.encode(value) + b"\n\n"
