"""A deployment whose models are on an imitation of the Hub: a custom catalog names their repositories."""

import json
from pathlib import Path

from tests.support.cli import Ran, dflash
from tests.support.hub import Generated, Hub, read

CONFIG = json.dumps({"architectures": ["Qwen3ForCausalLM"], "hidden_size": 64, "num_hidden_layers": 4})
DRAFTS = json.dumps({"architectures": ["DFlashDraftModel"], "hidden_size": 64, "block_size": 8})
FAMILY = """
name: local
title: A model of the tests
source: tests
shape: {layers: 4, hidden_size: 64, vocabulary: 1000, context: 4096, parameters: 5000000,
        full_attention: {layers: 4, heads: 4, kv_heads: 2, head_dim: 16}}
drafter: {repo: o/drafter, bytes: 1000000, source: tests, block_size: 8, layers: 1, hidden_size: 64, kv_heads: 2,
          head_dim: 16}
targets:
  - {name: local, title: A model of the tests, repo: o/target, bytes: 5000000, source: tests, quantisation: bf16,
     served_name: local}
"""
TARGET = Generated(5_000_000, seed=1)
DRAFTER = Generated(1_000_000, seed=2)
LOCAL = ("--profile", "cpu", "--model", "local", "--runtime", "native")


class Box:
    """The deployment, its custom catalog and its models, in one directory."""

    def __init__(
        self, hub: Hub, directory: Path, *, family: str = FAMILY, options: tuple[str, ...] | None = None
    ) -> None:
        self.directory = directory / "deployment"
        self.models = directory / "models"
        (directory / "catalog" / "families").mkdir(parents=True, exist_ok=True)
        (directory / "catalog" / "families" / "local.yaml").write_text(family)
        self.environment = {
            "HF_ENDPOINT": hub.endpoint,
            "HF_HOME": str(directory / "hf"),
            "HF_HUB_DISABLE_TELEMETRY": "1",
            "DFLASH_CATALOG": str(directory / "catalog"),
        }
        chosen = (*LOCAL, "--models-dir", str(self.models)) if options is None else options
        self.directory.mkdir()
        dflash("init", *chosen, at=self.directory, environment=self.environment).succeeded()

    def pull(self, *options: str) -> Ran:
        """Run `pull`."""
        return dflash("pull", *options, at=self.directory, environment=self.environment)

    @property
    def lock(self) -> dict[str, dict[str, object]]:
        """The models of `dflash.lock`, by role."""
        models: dict[str, dict[str, object]] = json.loads((self.directory / "dflash.lock").read_text())["models"]
        return models

    def whole(self) -> bool:
        """Whether the weights of target and drafter are there, byte for byte."""
        wanted = {"target": TARGET, "drafter": DRAFTER}
        return all((self.models / role / "model.safetensors").read_bytes() == read(one) for role, one in wanted.items())
