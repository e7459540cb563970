"""`vllm bench serve`, the benchmark that people know, against an endpoint of ours with the same prompts."""

import json
import os
import subprocess
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from dflash_deploy.assets import asset
from dflash_deploy.bench import Prompt
from dflash_deploy.client import Endpoint, SpecCounters
from dflash_deploy.serve.engine import installed_engine

LONGEST = 256
"""Tokens that no answer of the corpus reaches: each ends by itself."""


@dataclass(frozen=True)
class Said:
    """What it printed and saved, and what the engine's counters of drafts gained meanwhile."""

    text: str
    result: dict[str, Any]
    counted: SpecCounters


def vllm_bench_serve(endpoint: Endpoint, key: str, prompts: Sequence[Prompt], *, concurrency: int) -> Said:
    """Each prompt once, in order, greedily, over so many streams. Prompts must be a single turn without thinking."""
    engine = installed_engine()
    assert engine is not None
    with tempfile.TemporaryDirectory() as folder:
        file, saved = Path(folder) / "prompts.json", Path(folder) / "result.json"
        # the one form of file that it reads without pandas; the answer's turn is not looked at
        turns = [[{"value": one.messages[0].content}, {"value": ""}] for one in prompts]
        file.write_text(json.dumps([{"conversations": both} for both in turns]))
        options: dict[str, object] = {
            "--backend": "openai-chat",
            "--base-url": endpoint.url,
            "--endpoint": "/v1/chat/completions",
            "--model": endpoint.model,
            "--tokenizer": asset("models/tiny/target"),
            "--dataset-name": "sharegpt",
            "--dataset-path": file,
            "--sharegpt-output-len": LONGEST,
            "--num-prompts": len(prompts),
            "--max-concurrency": concurrency,
            # its one request beforehand would count in the engine's counters
            "--ready-check-timeout-sec": 0,
            "--temperature": 0,
            "--extra-body": json.dumps({"chat_template_kwargs": {"enable_thinking": False}}),
            "--result-filename": saved,
        }
        flags = ["--disable-shuffle", "--save-result", "--disable-tqdm"]
        arguments = [str(part) for option in options.items() for part in option]
        before = endpoint.counters()
        done = subprocess.run(
            engine.command(["bench", "serve", *arguments, *flags]),
            env=engine.environment(os.environ) | {"OPENAI_API_KEY": key, "HF_HUB_OFFLINE": "1"},
            capture_output=True,
            text=True,
            timeout=300,
            check=False,
        )
        assert done.returncode == 0, done.stderr[-2000:]
        return Said(done.stdout, json.loads(saved.read_text()), endpoint.counters() - before)
