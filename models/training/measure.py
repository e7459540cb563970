"""Measures served models: `python -m models.training.measure --url URL --prompts models/tiny/prompts.jsonl`.

It needs only the standard library and Pillow. Run it with `--save` on a server with the drafter, then with `--compare`
on a server without it: the drafter must change only the speed.
"""

import argparse
import base64
import io
import json
import os
import re
import statistics
import time
import urllib.request
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from PIL import Image

KINDS = ("chat", "thinking", "long", "image")
CONCURRENCIES = (1, 4)
REPEATS = 5
COUNTERS = ("num_drafts", "num_accepted_tokens")


@dataclass(frozen=True, slots=True)
class Endpoint:
    """An OpenAI-compatible server."""

    url: str
    model: str
    key: str

    def answer(self, prompt: dict[str, Any]) -> tuple[str, int]:
        """The greedy reply to a line of the prompts file, and its number of tokens."""
        body = {
            "model": self.model,
            "messages": _messages(prompt),
            "max_tokens": prompt["max_tokens"],
            "temperature": 0,
            "chat_template_kwargs": {"enable_thinking": prompt["enable_thinking"]},
        }
        reply = json.loads(self._fetch("/v1/chat/completions", body))
        return reply["choices"][0]["message"]["content"], reply["usage"]["completion_tokens"]

    def counters(self) -> dict[str, float]:
        """The sums of vLLM's speculation counters; zero if the server has no drafter."""
        text = self._fetch("/metrics", None)
        found = {name: re.findall(rf"(?m)^vllm:spec_decode_{name}_total\S* (\S+)$", text) for name in COUNTERS}
        return {name: sum(map(float, values)) for name, values in found.items()}

    def _fetch(self, path: str, body: dict[str, Any] | None) -> str:
        data = None if body is None else json.dumps(body).encode()
        headers = {"Content-Type": "application/json", "Authorization": f"Bearer {self.key}"}
        request = urllib.request.Request(self.url + path, data, headers)  # noqa: S310 - the caller's own server
        with urllib.request.urlopen(request, timeout=300) as response:  # noqa: S310
            return str(response.read().decode())


def _messages(prompt: dict[str, Any]) -> list[dict[str, Any]]:
    """The messages of a prompt; its image is drawn and inserted before the text of the last message."""
    if prompt["image"] is None:
        return list(prompt["messages"])
    *earlier, last = prompt["messages"]
    part = {"type": "image_url", "image_url": {"url": _data_uri(prompt["image"])}}
    return [*earlier, {"role": last["role"], "content": [part, {"type": "text", "text": last["content"]}]}]


def _data_uri(image: dict[str, Any]) -> str:
    buffer = io.BytesIO()
    Image.new("RGB", (image["width"], image["height"]), tuple(image["rgb"])).save(buffer, "PNG")
    return "data:image/png;base64," + base64.b64encode(buffer.getvalue()).decode()


def check_replies(endpoint: Endpoint, prompts: Sequence[dict[str, Any]]) -> dict[str, str]:
    """Sends each prompt once; prints exact replies and acceptance length by kind. Returns the replies by prompt id."""
    replies: dict[str, str] = {}
    for kind in KINDS:
        chosen = [prompt for prompt in prompts if prompt["kind"] == kind]
        before = endpoint.counters()
        replies |= {prompt["id"]: endpoint.answer(prompt)[0] for prompt in chosen}
        after = endpoint.counters()
        right = sum(replies[prompt["id"]] == prompt["expected"] for prompt in chosen)
        drafts, accepted = (after[name] - before[name] for name in COUNTERS)
        length = f"{1 + accepted / drafts:.2f}" if drafts else "no drafter"
        print(f"{kind:9} exact {right}/{len(chosen)}  acceptance length {length}")
    for prompt in prompts:
        if replies[prompt["id"]] != prompt["expected"]:
            print(f"  {prompt['id']}: {replies[prompt['id']]!r} instead of {prompt['expected']!r}")
    return replies


def throughput(endpoint: Endpoint, prompts: Sequence[dict[str, Any]], concurrency: int) -> float:
    """Tokens per second over all long prompts at this concurrency: the median of several rounds."""
    chosen = [prompt for prompt in prompts if prompt["kind"] == "long"]
    rates = []
    for _ in range(REPEATS):
        began = time.monotonic()
        with ThreadPoolExecutor(concurrency) as pool:
            tokens = sum(count for _, count in pool.map(endpoint.answer, chosen))
        rates.append(tokens / (time.monotonic() - began))
    return statistics.median(rates)


def _print_differences(replies: dict[str, str], others: dict[str, str]) -> None:
    different = [name for name in replies if replies[name] != others[name]]
    print(f"replies equal to the other run: {len(replies) - len(different)}/{len(replies)}")
    for name in different:
        print(f"  {name}: {replies[name]!r} in this run, {others[name]!r} in the other run")


def main() -> None:
    """The command line; the API key is read from `VLLM_API_KEY`."""
    parser = argparse.ArgumentParser(prog="python -m models.training.measure", description=__doc__)
    parser.add_argument("--url", required=True)
    parser.add_argument("--model", default="tiny")
    parser.add_argument("--prompts", type=Path, required=True)
    parser.add_argument("--save", type=Path, help="write the replies to this file")
    parser.add_argument("--compare", type=Path, help="compare the replies with those of another run")
    arguments = parser.parse_args()
    endpoint = Endpoint(arguments.url, arguments.model, os.environ.get("VLLM_API_KEY", ""))
    prompts = [json.loads(line) for line in arguments.prompts.read_text(encoding="utf-8").splitlines()]
    replies = check_replies(endpoint, prompts)
    if arguments.save:
        arguments.save.write_text(json.dumps(replies), encoding="utf-8")
    if arguments.compare:
        _print_differences(replies, json.loads(arguments.compare.read_text(encoding="utf-8")))
    for concurrency in CONCURRENCIES:
        print(f"concurrency {concurrency}: {throughput(endpoint, prompts, concurrency):.0f} tokens/s")


if __name__ == "__main__":
    main()
