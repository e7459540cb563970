"""Two examples for the help of each command."""

from __future__ import annotations

from collections.abc import Mapping

EXAMPLES: Mapping[str, tuple[str, str]] = {
    "init": ("init", "init --profile rtx-3090 --models-dir /data/models"),
    "plan": ("plan --ask-engine", "plan --profile dgx-spark --goal throughput"),
    "doctor": ("doctor", "doctor --probe --json"),
    "pull": ("pull", "pull --offline --verify"),
    "render": ("render", "render --dir /srv/vision"),
    "up": ("up", "up --fix --patience 1800"),
    "restart": ("restart", "restart --dir /srv/vision"),
    "rollback": ("rollback", "rollback --json"),
    "test": ("test --url http://box:8000 --key-file key.txt", "test --kubernetes vision"),
    "bench": ("bench --baseline", "bench --workload code,chat --concurrency 1,8 --save run.json"),
    "tune": ("tune --dry-run", "tune --workload code --yes"),
    "connect": ("connect", "connect opencode --url http://box:8000"),
    "status": ("status", "status --since 2h"),
    "logs": ("logs --follow", "logs --bundle report.tar.gz"),
    "explain": ("explain engine.log", "explain - --json"),
    "down": ("down", "down --dir /srv/vision"),
    "profiles": ("profiles", "profiles show rtx-3090"),
    "profiles list": ("profiles list", "profiles list --json"),
    "profiles show": ("profiles show rtx-3090", "profiles show dgx-spark-x2 --json"),
    "models": ("models list --profile rtx-5090", "models show qwen3.6-27b-fp8"),
    "models list": ("models list", "models list --profile rtx-5090"),
    "models show": ("models show qwen3.6-27b-fp8", "models show Qwen/Qwen3.6-27B-FP8 --json"),
    "models convert": (
        "models convert gguf ./drafter --target ./27b",
        "models convert gguf ./drafter --target ./27b --quantize Q4_K_M",
    ),
    "models convert gguf": (
        "models convert gguf ./drafter --target ./27b",
        "models convert gguf ./drafter --target ./27b --quantize Q4_K_M",
    ),
    "keys": ("keys show", "keys add alice"),
    "keys show": ("keys show", "keys show alice --reveal"),
    "keys add": ("keys add alice", "keys add batch --in-flight 4 --tokens-per-minute 60000"),
    "keys revoke": ("keys revoke alice", "keys revoke alice --json"),
    "keys list": ("keys list", "keys list --json"),
    "keys usage": ("keys usage", "keys usage --json"),
    "keys rotate": ("keys rotate", "keys rotate --json-stream"),
    "monitor": ("monitor up", "monitor export ./monitoring"),
    "monitor up": ("monitor up", "monitor up --ntfy https://ntfy.sh/TOPIC"),
    "monitor down": ("monitor down", "monitor down --json"),
    "monitor status": ("monitor status", "monitor status --json"),
    "monitor test": ("monitor test", "monitor test --json"),
    "monitor silence": ("monitor silence --for 2h", "monitor silence EngineDown --for 1d --comment 'new disk'"),
    "monitor export": ("monitor export ./monitoring", "monitor export ./monitoring --compose"),
    "export": ("export compose", "export kubernetes --replicas 2 --runtime-class nvidia"),
    "export production-stack": (
        "export production-stack --check",
        "export production-stack --image example.com/vllm:1",
    ),
    "export compose": ("export compose", "export compose --out ../vision --check"),
    "export kubernetes": (
        "export kubernetes --check",
        "export kubernetes --weights claim --image example.com/vllm:1",
    ),
    "fleet": ("fleet init nvidia@spark-a nvidia@spark-b", "fleet up"),
    "fleet init": (
        "fleet init nvidia@spark-a nvidia@spark-b",
        "fleet init a=nvidia@192.168.1.10 b=nvidia@192.168.1.11",
    ),
    "fleet up": ("fleet up", "fleet up --host spark-b"),
    "fleet status": ("fleet status", "fleet status --json"),
    "fleet test": ("fleet test", "fleet test --host spark-a"),
    "fleet logs": ("fleet logs --tail 50", "fleet logs --host spark-b"),
    "fleet down": ("fleet down", "fleet down --json"),
    "fleet restart": ("fleet restart", "fleet restart --host spark-b"),
    "fleet watch": ("fleet watch", "fleet watch --looks 1"),
    "fleet facts": ("fleet facts", "fleet facts --json"),
    "fleet route": ("fleet route", "fleet route --without 10.0.0.2:8000"),
    "fleet accept": ("fleet accept", "fleet accept --json"),
    "fleet keys": ("fleet keys add alice", "fleet keys rotate"),
    "fleet keys add": ("fleet keys add alice", "fleet keys add grafana --scope metrics"),
    "fleet keys rotate": ("fleet keys rotate", "fleet keys rotate alice --overlap 3600"),
    "fleet keys revoke": ("fleet keys revoke alice", "fleet keys revoke alice --json"),
    "fleet keys usage": ("fleet keys usage", "fleet keys usage --json"),
    "fleet weights": ("fleet weights", "fleet weights --probe 3 --json"),
    "fleet take": ("fleet take", "fleet take --json-stream"),
    "fleet offer": (
        "fleet offer --address 192.168.100.1",
        "fleet offer --address 192.168.100.1 --dir dflash-fleet",
    ),
    "image": ("image build", "image digest --pin"),
    "image build": ("image build", "image build --dir /srv/vision"),
    "image verify": ("image verify", "image verify --json"),
    "image digest": ("image digest", "image digest --pin"),
    "image sbom": ("image sbom", "image sbom --out sbom.json"),
    "schema": ("schema", "schema keys rotate"),
}
"""The arguments of both examples, by the command's full name; the simplest one first."""


def epilog(name: str) -> str:
    """The examples as the end of a help text; empty if the command has none. `\\b` keeps the lines as they are."""
    lines = (f"  dflash-deploy {example}" for example in EXAMPLES.get(name, ()))
    return "\n".join(("\b", "Examples:", *lines)) if name in EXAMPLES else ""
