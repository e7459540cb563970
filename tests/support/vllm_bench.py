"""`vllm bench serve`, the benchmark that people know, against an endpoint of ours with the same prompts."""

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

from dflash_deploy.assets import asset
from dflash_deploy.bench.workload import Prompt
from dflash_deploy.client.endpoint import Endpoint
from dflash_deploy.serve.engines.counters import SpecCounters
from dflash_deploy.serve.engines.installed import installed_vllm

LONGEST = 256  # tokens that no answer of the corpus reaches: each ends by itself
WORKER = Path(__file__).with_name("vllm_bench_worker.py")


@dataclass(frozen=True)
class Said:
    """What it printed and saved, and what the engine's counters of drafts gained meanwhile."""

    text: str
    result: dict[str, Any]
    counted: SpecCounters


@dataclass(frozen=True)
class VllmBench:
    """It, in a process that has imported vLLM and waits for arguments; files are written under `folder`."""

    asked: IO[str]
    said: IO[str]
    folder: Path

    def serve(self, endpoint: Endpoint, prompts: Sequence[Prompt], *, concurrency: int) -> Said:
        """Each prompt once, in order, greedily, over so many streams. Prompts must be one turn without thinking."""
        file, saved = self.folder / "prompts.json", self.folder / "result.json"
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
        before = endpoint.counters()
        text = self._run([str(part) for option in options.items() for part in option] + flags)
        return Said(text, json.loads(saved.read_text()), endpoint.counters() - before)

    def _run(self, arguments: list[str]) -> str:
        self.asked.write(json.dumps(arguments) + "\n")
        self.asked.flush()
        return self.answer()

    def answer(self) -> str:
        """What it printed for the last arguments; what else reaches its standard output is not JSON."""
        for line in self.said:
            if line.startswith('"'):
                return str(json.loads(line))
        raise AssertionError("vllm bench serve ended; what it said stands above")


@contextmanager
def vllm_bench(key: str) -> Iterator[VllmBench]:
    """It, ready to be asked with this key; its process ends with the block."""
    engine = installed_vllm()
    assert engine is not None
    environment = engine.environment(os.environ) | {"OPENAI_API_KEY": key, "HF_HUB_OFFLINE": "1"}
    with (
        tempfile.TemporaryDirectory() as folder,
        subprocess.Popen(
            [sys.executable, WORKER], env=environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        ) as process,
    ):
        assert process.stdin is not None
        assert process.stdout is not None
        bench = VllmBench(process.stdin, process.stdout, Path(folder))
        # the line that says that its imports are done
        bench.answer()
        yield bench
        process.stdin.close()
