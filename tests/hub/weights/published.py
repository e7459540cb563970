"""A repository of the local hub, and two ways to get a file of it."""

import hashlib
from pathlib import Path

import httpx
from huggingface_hub import hf_hub_download

from tests.support.hub import Generated, Hub, Sources, read

CONFIG = b'{"model_type": "qwen3"}'
WEIGHTS = Generated(2_500_000, seed=7)
BYTES = read(WEIGHTS)
SHA256 = hashlib.sha256(BYTES).hexdigest()
NAME = "o/target"
SHARD = "model.safetensors"
FILES: Sources = {"config.json": CONFIG, SHARD: WEIGHTS, "assets/logo.txt": "logo"}


def fetch(
    hub: Hub, tmp: Path, file: str, name: str = NAME, *, revision: str | None = None, token: str | None = None
) -> bytes:
    local, cache = tmp / "local", tmp / "cache"
    path = hf_hub_download(
        name, file, revision=revision, token=token, endpoint=hub.endpoint, local_dir=local, cache_dir=cache
    )
    return Path(path).read_bytes()


def get(http: httpx.Client, file: str = SHARD, **headers: str) -> httpx.Response:
    return http.get(f"/{NAME}/resolve/main/{file}", headers=headers)
