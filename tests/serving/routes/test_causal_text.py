"""A text model with a causal convolution over HTTP: completions, streamed ones, and several at once."""

import concurrent.futures
import json
from pathlib import Path
from typing import Any

from cellerate.runtime.packed import load
from support.servers import convolved_cell, serving


def test_completions_are_the_texts_of_the_model(tmp_path: Path) -> None:
    path = convolved_cell(tmp_path / "text.cell")
    model = load(path)
    prompts = ["a", "ab", "abcdefgh" * 30, "dcb", "a"]
    options: dict[str, Any] = {"max_tokens": 60, "temperature": 0}
    right = model.generate(prompts, **options)
    with serving(path) as server, server.client() as http:

        def complete(prompt: Any, **more: Any) -> Any:
            return http.post("/v1/completions", json={"model": "text", "prompt": prompt, **options, **more})

        together = complete(prompts).json()["choices"]
        assert [each["text"] for each in together] == right
        with concurrent.futures.ThreadPoolExecutor() as pool:
            apart = [each.json()["choices"][0]["text"] for each in pool.map(complete, prompts)]
        assert apart == right
        lines = complete(prompts[2], stream=True).text.splitlines()
        parts = [json.loads(line[6:]) for line in lines if line.startswith("data: {")]
        assert "".join(part["choices"][0]["text"] for part in parts) == right[2]
