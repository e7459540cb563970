"""The folder of `export compose`, run by the real Compose as its README says; dflash-deploy is not on its PATH."""

import json
import os
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx

from dflash_deploy.deployment.directory import Deployment
from tests.support.cli import dflash, edit_env
from tests.support.commands import wait_until
from tests.support.ports import free_port

STARTS = 120.0
"""Seconds for the start of tiny engines, and of a router that adds them."""


@dataclass(frozen=True)
class ExportedFolder:
    """A folder whose containers run."""

    path: Path
    url: str
    environment: dict[str, str]

    def run(self, command: str) -> str:
        """What a line of a shell writes in the folder; it must succeed."""
        done = subprocess.run(
            ["sh", "-c", command], cwd=self.path, env=self.environment, capture_output=True, text=True, check=False
        )
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout

    def services(self) -> dict[str, dict[str, Any]]:
        """What `docker inspect` says of each container, by its service."""
        found = json.loads(self.run("docker inspect $(docker compose ps -aq)"))
        return {one["Config"]["Labels"]["com.docker.compose.service"]: one for one in found}

    def lines_of_the_readme(self) -> str:
        """The status of the README's request without a key. That with the key gets an answer."""
        section = (self.path / "README.md").read_text().partition("## 4. Check")[2].partition("With dflash-deploy")[0]
        lines = "\n".join(line.removeprefix("    ") for line in section.splitlines() if line.startswith("    "))
        without, _, rest = lines.partition("\nsed ")
        answer = json.loads(self.run(f"sed {rest}"))
        assert answer["choices"][0]["message"]["content"].strip(), answer
        return self.run(without).strip()


@contextmanager
def exported_folder(place: Path, like: Deployment, image: str, *options: str) -> Iterator[ExportedFolder]:
    """A deployment with the images of another one, exported, and its folder started; `down` at the end."""
    made, port = place / "made", free_port()
    made.mkdir()
    dflash("init", "--profile", "cpu", "--runtime", "compose", "--port", str(port), *options, at=made).succeeded()
    edit_env(made, DFLASH_BASE_IMAGE=like.values["DFLASH_BASE_IMAGE"], DFLASH_IMAGE=image)
    dflash("export", "compose", "--out", str(place / "folder"), at=made).succeeded()
    # the folder has all that it needs
    shutil.rmtree(made)
    environment = {name: os.environ[name] for name in ("DOCKER_HOST", "DOCKER_CONFIG", "HOME") if name in os.environ}
    folder = ExportedFolder(
        place / "folder", f"http://127.0.0.1:{port}", {**environment, "PATH": "/usr/local/bin:/usr/bin:/bin"}
    )
    folder.run("! command -v dflash-deploy")
    try:
        folder.run("sh setup.sh && docker compose up -d --no-build")
        key = (folder.path / ".env").read_text().partition("VLLM_API_KEY=")[2].split()[0]
        assert wait_until(lambda: _answers(folder.url, key), STARTS), folder.run("docker compose logs")
        yield folder
    finally:
        folder.run("docker compose down -v -t 1")


def _answers(url: str, key: str) -> bool:
    body = {"model": "tiny", "messages": [{"role": "user", "content": "Count."}], "max_tokens": 2}
    try:
        return httpx.post(
            f"{url}/v1/chat/completions", json=body, headers={"Authorization": f"Bearer {key}"}, timeout=10
        ).is_success
    except httpx.TransportError:
        return False
