"""OpenAI's official client against a server: texts and vectors must equal those of the model."""

import asyncio
import base64
import math
import re
from collections.abc import Iterator
from typing import Any

import numpy as np
import openai
import pytest

from cellerate.runtime.packed import load
from cellerate.runtime.text.sampling import sample, sampling_rules
from cellerate.serving.routes import completions
from support.servers import CHARACTERS, Server, embed_cell, plain_cell, serving, text_cell

PROMPT = "abc"


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> Any:
    folder = tmp_path_factory.mktemp("models")
    return (
        text_cell(folder / "text.cell"),
        embed_cell(folder / "lines.cell"),
        plain_cell(folder / "plain.cell"),
    )


@pytest.fixture(scope="module")
def server(files: Any) -> Iterator[Server]:
    with serving(*files) as running:
        yield running


@pytest.fixture(scope="module")
def client(server: Server) -> Iterator[openai.OpenAI]:
    with openai.OpenAI(
        base_url=f"{server.address}/v1", api_key="none", max_retries=0, http_client=server.client()
    ) as made:
        yield made


@pytest.fixture(scope="module")
def model(files: Any) -> Any:
    return load(files[0])


def test_models_are_listed_and_described(client):
    assert [each.id for each in client.models.list()] == ["text", "lines", "plain"]
    assert client.models.retrieve("lines").owned_by == "cellerate"
    with pytest.raises(
        openai.NotFoundError, match="there is no model 'other' here; there is text, lines, plain"
    ):
        client.models.retrieve("other")


def test_completion_equals_the_text_that_the_model_generates(client, model):
    found = client.completions.create(model="text", prompt=PROMPT, max_tokens=60, seed=7, temperature=0.8)
    assert found.choices[0].text == model.generate(PROMPT, max_tokens=60, seed=7, temperature=0.8)
    assert found.choices[0].finish_reason == "length"
    assert found.usage.prompt_tokens == 3
    assert found.usage.completion_tokens == 60
    assert found.usage.total_tokens == 63


def test_defaults_are_those_of_the_protocol(client):
    first, second = (client.completions.create(model="text", prompt=PROMPT) for _ in range(2))
    assert len(first.choices[0].text) == len(second.choices[0].text) == 16
    assert first.id != second.id
    assert first.choices[0].text != second.choices[0].text, "without a seed each draws anew"


@pytest.mark.parametrize(
    "prompt",
    ["bad", [1, 0, 3], ["bad", "cab"], [[1, 0, 3], [2, 0, 1]]],
    ids=["text", "ids", "texts", "lists"],
)
def test_prompt_may_be_text_or_ids_or_several(client, model, prompt):
    texts = ["bad", "cab"] if isinstance(prompt[0], list | str) and len(prompt[0]) == 3 else ["bad"]
    found = client.completions.create(model="text", prompt=prompt, max_tokens=20, seed=3, temperature=1)
    right = model.generate(texts, max_tokens=20, seed=3)
    assert [each.text for each in found.choices] == right
    assert found.usage.prompt_tokens == 3 * len(texts)


def test_n_gives_different_texts_equal_to_those_of_the_model(client, model):
    found = client.completions.create(model="text", prompt=["ab", "cd"], n=3, max_tokens=30, seed=1)
    assert [each.index for each in found.choices] == list(range(6))
    right = model.generate(["ab"] * 3 + ["cd"] * 3, max_tokens=30, seed=1)
    assert [each.text for each in found.choices] == right
    assert len(set(right)) == 6
    assert found.usage.prompt_tokens == 4


@pytest.mark.parametrize(
    "options", [{}, {"n": 4}, {"echo": True}, {"logprobs": 2}, {"n": 2, "logprobs": 1, "echo": True}]
)
def test_streamed_parts_join_to_the_whole_answer(client, options):
    given = {"model": "text", "prompt": PROMPT, "max_tokens": 200, "seed": 5, "stop": ["aa"], **options}
    whole = client.completions.create(**given)
    parts = list(client.completions.create(**given, stream=True, stream_options={"include_usage": True}))
    assert parts[-1].usage == whole.usage
    assert parts[-1].choices == []
    for right in whole.choices:
        own = [each for part in parts for each in part.choices if each.index == right.index]
        assert "".join(each.text for each in own) == right.text
        assert [each.finish_reason for each in own if each.finish_reason] == [right.finish_reason]
        if right.logprobs:
            for name in ("tokens", "token_logprobs", "top_logprobs", "text_offset"):
                joined = [entry for each in own if each.logprobs for entry in getattr(each.logprobs, name)]
                assert joined == getattr(right.logprobs, name)


def test_stop_text_ends_a_completion_and_is_not_part_of_it(client, model):
    free = model.generate(PROMPT, max_tokens=100, seed=2)
    stop = free[10:12]
    found = client.completions.create(model="text", prompt=PROMPT, max_tokens=100, seed=2, stop=stop)
    assert found.choices[0].text == free[: free.index(stop)]
    assert found.choices[0].finish_reason == "stop"


def test_log_probabilities_equal_those_of_the_model(client, model):
    found = client.completions.create(
        model="text", prompt=PROMPT, max_tokens=12, seed=4, logprobs=3, echo=True
    )
    told = found.choices[0].logprobs
    text = PROMPT + model.generate(PROMPT, max_tokens=12, seed=4)
    assert found.choices[0].text == text
    assert told.tokens == list(text)
    assert told.text_offset == list(range(15))
    assert told.token_logprobs[0] is None
    assert told.top_logprobs[0] is None
    right = model.score(text).log_probabilities
    np.testing.assert_allclose(told.token_logprobs[1:], right, atol=2e-6)
    for own, likely, top in zip(told.tokens[1:], told.token_logprobs[1:], told.top_logprobs[1:], strict=True):
        assert len(top) in (3, 4)
        assert top[own] == likely
        assert list(top.values())[:3] == sorted(top.values(), reverse=True)[:3]
        assert sum(map(math.exp, top.values())) <= 1 + 1e-9


def test_log_probabilities_without_echo_begin_after_the_prompt(client):
    found = client.completions.create(model="text", prompt=PROMPT, max_tokens=5, seed=4, logprobs=0)
    told = found.choices[0].logprobs
    assert told.text_offset == [3, 4, 5, 6, 7]
    assert all(one is not None for one in told.token_logprobs)
    assert told.top_logprobs == [{}] * 5


def test_likelihood_of_a_text_is_available_without_drawing(client, model):
    """Evaluation harnesses ask so: echo, at most one token, greedy; they sum over the continuation."""
    for max_tokens in (0, 1):
        found = client.completions.create(
            model="text",
            prompt=[[0, 1, 2, 3, 4]],
            max_tokens=max_tokens,
            temperature=0,
            logprobs=1,
            echo=True,
        )
        told = found.choices[0].logprobs
        assert len(told.tokens) == 5 + max_tokens
        right = model.score("abcde").log_probabilities
        assert sum(told.token_logprobs[2:5]) == pytest.approx(float(right[1:].sum()), abs=1e-5)
        if max_tokens:
            assert told.token_logprobs[-1] == max(told.top_logprobs[-1].values()), "it is the greedy one"


def test_greedy_completion_takes_the_likeliest(client, model):
    found = client.completions.create(model="text", prompt=PROMPT, max_tokens=6, temperature=0)
    stepper, text = model.stepper(), ""
    logits = stepper.read(model.tokenizer.encode(PROMPT)[None])
    for _ in range(6):
        (number,), _ = sample(logits, sampling_rules(temperature=0))
        text += CHARACTERS[number]
        logits = stepper.step([number])
    assert found.choices[0].text == text


@pytest.mark.parametrize(
    "given, message",
    [
        ({"prompt": ""}, "the prompt is empty"),
        ({"prompt": []}, "prompt"),
        ({"prompt": "xyz"}, "'x'"),
        ({"prompt": [99]}, "id 99; ids are below 8"),
        ({"prompt": ["a", [1]]}, "mixes texts and ids"),
        ({"prompt": [-1]}, "prompt"),
        ({"temperature": -1}, r"temperature"),
        ({"top_p": 0}, r"top_p"),
        ({"n": 129}, "one request may ask for 128"),
        ({"max_tokens": 10**6}, "at most 100000 are drawn"),
        ({"logprobs": 21}, "logprobs"),
        ({"best_of": 3}, "best_of is 3"),
        ({"suffix": "x"}, "suffix is not supported"),
        ({"logit_bias": {"1": 5}}, "logit_bias is not supported"),
        ({"presence_penalty": 1}, "presence_penalty is not supported"),
        ({"stop": [""]}, "a stop text is empty"),
        ({"model": "lines"}, "lines does not continue texts; it is a model of lines: POST /v1/embeddings"),
        ({"model": "plain"}, "it is a model without a task: POST /v2/models/plain/infer"),
        ({"extra_body": {"temprature": 0.5}}, "no field 'temprature'. Did you mean temperature?"),
        ({"extra_body": {"temprature": 0}}, "Did you mean temperature?"),
        ({"extra_body": {"wings": 2}}, "no field 'wings'. There is model, prompt"),
        ({"extra_body": {"tools": [{"type": "function"}]}}, "tools is not supported"),
        ({"extra_body": {"response_format": {"type": "json_object"}}}, "response_format is not supported"),
    ],
)
def test_request_that_cannot_be_answered_gives_the_reason(client, given, message):
    with pytest.raises(openai.BadRequestError, match=message):
        client.completions.create(**({"model": "text", "prompt": PROMPT} | given))


def test_answer_with_too_many_log_probabilities_is_refused_before_it_is_drawn(client):
    options = {"model": "text", "prompt": PROMPT, "max_tokens": 90_000, "n": 2, "seed": 1}
    with pytest.raises(openai.APIStatusError, match="the answer would have 3,780,000 numbers") as caught:
        client.completions.create(**options, logprobs=20)
    assert caught.value.status_code == 413
    # A stream keeps nothing.
    with client.completions.create(**options, logprobs=20, stream=True) as stream:
        assert next(iter(stream)).choices[0].logprobs.top_logprobs


def test_streams_wait_for_a_client_that_does_not_read():
    made = [0, 0]

    async def stream(number):
        while True:
            made[number] += 1
            yield {"number": number}
            await asyncio.sleep(0)

    async def read():
        merged = completions._merged([stream(0), stream(1)])
        numbers = [(await anext(merged))["number"] for _ in range(10)]
        for _ in range(1000):
            await asyncio.sleep(0)
        await merged.aclose()
        return numbers

    numbers = asyncio.run(read())
    assert {*numbers} == {0, 1}
    assert sum(made) <= 10 + 6


def test_ignored_fields_change_nothing(client):
    options = {"model": "text", "prompt": PROMPT, "max_tokens": 20, "seed": 3}
    right = client.completions.create(**options).choices[0].text
    sent = {"user": "me", "metadata": {"a": "b"}, "store": True, "service_tier": "auto", "cache_prompt": True}
    asking_nothing = {"tools": [], "tool_choice": None, "ignore_eos": False, "wings": None}
    found = client.completions.create(
        **options, best_of=1, echo=False, logit_bias={}, suffix=None, extra_body=sent | asking_nothing
    )
    assert found.choices[0].text == right


def test_unsupported_routes_give_an_error_that_the_client_shows(client):
    with pytest.raises(openai.NotFoundError, match=r"POST /v1/completions continues texts") as caught:
        client.chat.completions.create(model="text", messages=[{"role": "user", "content": PROMPT}])
    assert caught.value.type == "invalid_request_error"
    with pytest.raises(openai.NotFoundError, match="there is no route '/v1/moderations' here"):
        client.moderations.create(input=PROMPT)


def test_misspelt_field_of_a_request_for_vectors_is_named(client):
    with pytest.raises(openai.BadRequestError, match=r"no field 'dimension'\. Did you mean dimensions\?"):
        client.embeddings.create(model="lines", input="abc", extra_body={"dimension": 3})


def test_vectors_equal_the_model_as_numbers_and_as_base64(client, files):
    lines = ["abc", "", "hgfedcba" * 3]
    right = load(files[1]).embed(lines)
    for form in ("float", "base64"):
        found = client.embeddings.create(model="lines", input=lines, encoding_format=form)
        for each, vector in zip(found.data, right, strict=True):
            given = each.embedding
            if isinstance(given, str):
                given = np.frombuffer(base64.b64decode(given), "<f4")
            np.testing.assert_array_equal(np.array(given, np.float32), vector)
    # By default the client asks for base64 and decodes it.
    alone = client.embeddings.create(model="lines", input="abc")
    np.testing.assert_array_equal(
        np.array(alone.data[0].embedding, np.float32), load(files[1]).embed(["abc"])[0]
    )
    with pytest.raises(openai.BadRequestError, match="the vectors of lines have 6"):
        client.embeddings.create(model="lines", input="abc", dimensions=5)
    with pytest.raises(openai.BadRequestError, match="text gives no vectors"):
        client.embeddings.create(model="text", input="abc")


def test_text_is_tokenized_and_detokenized(server):
    with server.client() as http:
        found = http.post("/tokenize", json={"model": "text", "prompt": "hca"}).json()
        assert found == {"tokens": [7, 2, 0], "count": 3, "max_model_len": 100_000}
        back = http.post("/detokenize", json={"model": "text", "tokens": [7, 2, 0]})
        assert back.json() == {"prompt": "hca"}
        # There is only one text model, so its name may be left out.
        assert http.post("/tokenize", json={"prompt": "hca", "add_special_tokens": False}).json() == found
        long = http.post("/tokenize", json={"model": "text", "prompt": "hca" * 100_000}).json()
        assert (long["count"], long["tokens"][-3:]) == (300_000, [7, 2, 0])
        beyond = http.post("/tokenize", json={"model": "text", "prompt": "a" * 2_000_001})
        assert beyond.status_code == 413
        info = http.get("/tokenizer_info").json()
        assert (info["tokenizer_class"], info["vocab_size"], info["eos_token"]) == (
            "CharacterTokenizer",
            8,
            None,
        )


def test_model_name_may_be_omitted_with_a_single_text_model_only(tmp_path):
    with serving(text_cell(tmp_path / "a.cell"), text_cell(tmp_path / "b.cell")) as two, two.client() as http:
        for answer in (http.get("/tokenizer_info"), http.post("/tokenize", json={"prompt": "a"})):
            assert answer.status_code == 400
            assert "(a, b)" in answer.text
    with serving(plain_cell(tmp_path / "c.cell")) as none, none.client() as http:
        assert "none" in http.get("/tokenizer_info").text


def test_several_choices_read_their_prompt_once(server, client):
    def recalled() -> float:
        with server.client() as http:
            return float(
                re.search(r'prefix_cache_hits_total\{model_name="text"} (\S+)', http.get("/metrics").text)[1]
            )

    before = recalled()
    prompt = "habfg" * 7
    first = client.completions.create(model="text", prompt=prompt, max_tokens=9, n=3, seed=1)
    assert recalled() == before
    again = client.completions.create(model="text", prompt=prompt, max_tokens=9, n=3, seed=1)
    assert recalled() == before + 3 * len(prompt)
    assert [each.text for each in again.choices] == [each.text for each in first.choices]
