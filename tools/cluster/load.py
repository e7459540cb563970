"""Clients that ask one question after another: `python -m tools.cluster.load URL KEYFILE SECONDS CLIENTS`.

Prints one JSON document: requests, right answers, what failed and when, the slowest one in seconds, tokens/s.
"""

import asyncio
import json
import sys
import time
from itertools import cycle
from pathlib import Path
from typing import Any

import httpx

from dflash_deploy.assets import asset_text


async def client(url: str, key: str, until: float, number: int) -> list[dict[str, Any]]:
    """The requests of one client until that time: when, how long, tokens, and what was wrong; empty if nothing."""
    known = map(json.loads, asset_text("models", "tiny/prompts.jsonl").splitlines())
    prompts = [one for one in known if one["kind"] in {"chat", "long"}]
    seen: list[dict[str, Any]] = []
    async with httpx.AsyncClient(timeout=120, trust_env=False, headers={"authorization": f"Bearer {key}"}) as http:
        for prompt in cycle(prompts[number:] + prompts[:number]):
            begun = time.monotonic()
            if begun > until:
                return seen
            asked = {"model": "tiny", "messages": prompt["messages"], "max_tokens": prompt["max_tokens"]}
            asked |= {"temperature": 0, "chat_template_kwargs": {"enable_thinking": prompt["enable_thinking"]}}
            problem, tokens = "", 0
            try:
                answer = await http.post(f"{url}/v1/chat/completions", json=asked)
                problem = "" if answer.is_success else f"{answer.status_code} {answer.text[:200]}"
                if not problem:
                    said = answer.json()
                    tokens = said["usage"]["completion_tokens"]
                    text = said["choices"][0]["message"]["content"]
                    problem = "" if text.strip() == prompt["expected"].strip() else f"wrong: {text[:100]}"
            except httpx.HTTPError as error:
                problem = repr(error)
            seen.append({"at": time.time(), "seconds": time.monotonic() - begun, "tokens": tokens, "problem": problem})
            if problem:
                await asyncio.sleep(0.2)
    raise AssertionError("the prompts do not end")


async def main(url: str, key_file: str, seconds: str, clients: str) -> None:
    """Ask, and print what was seen."""
    key, begun = Path(key_file).read_text(), time.monotonic()
    until = begun + float(seconds)
    rows = [
        row
        for rows in await asyncio.gather(*(client(url, key, until, number) for number in range(int(clients))))
        for row in rows
    ]
    failed = [row for row in rows if row["problem"]]
    print(
        json.dumps(
            {
                "requests": len(rows),
                "failed": failed[:20],
                "failures": len(failed),
                "slowest": max(row["seconds"] for row in rows),
                "slow": sorted((round(row["seconds"], 1) for row in rows), reverse=True)[:5],
                "tokens_per_second": sum(row["tokens"] for row in rows) / (time.monotonic() - begun),
            }
        )
    )


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))
