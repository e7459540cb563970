"""One native deployment that tests and benchmarks share."""

import re
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import chain
from pathlib import Path

import httpx

from dflash_deploy.assets import asset
from dflash_deploy.client.endpoint import Endpoint
from dflash_deploy.deployment.directory import Deployment
from dflash_deploy.planning import plan_of
from dflash_deploy.startup.engine import endpoint_of
from tests.support.cli import dflash, edit_env


class Server:
    """The shared deployment. A test says whether it wants the drafter; the engine restarts only when that changes."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self._drafting: bool | None = None

    def serve(self, *, drafting: bool) -> Endpoint:
        """The endpoint, with or without the drafter."""
        if self._drafting is not drafting:
            drafter = str(asset("models/tiny/drafter")) if drafting else "off"
            edit_env(self.directory, DFLASH_DRAFTER=drafter)
            # unknown until it is up: a test that fails here must not mislead the next
            self._drafting = None
            dflash("up", at=self.directory).succeeded()
            self._drafting = drafting
        return self.connect()

    @contextmanager
    def changed(self, **settings: str) -> Iterator[Endpoint]:
        """The endpoint with its drafter and other settings, which are empty again for whoever asks next."""
        self._drafting = None
        edit_env(self.directory, **settings)
        try:
            with self.serve(drafting=True) as endpoint:
                yield endpoint
        finally:
            edit_env(self.directory, **dict.fromkeys(settings, ""))
            self._drafting = None

    @contextmanager
    def serve_as(self, **settings: str) -> Iterator[Endpoint]:
        """The endpoint with settings that `.env` has until the context ends. The next test restarts the engine."""
        env = self.directory / ".env"
        kept = env.read_bytes()
        self._drafting = None
        edit_env(self.directory, **settings)
        try:
            dflash("up", at=self.directory).succeeded()
            with self.connect() as endpoint:
                yield endpoint
        finally:
            env.write_bytes(kept)

    def connect(self) -> Endpoint:
        """A client of the endpoint as it is."""
        deployment = Deployment.existing(self.directory)
        return endpoint_of(deployment, plan_of(deployment))

    @property
    def key(self) -> str:
        """The key of the endpoint."""
        return Deployment(self.directory).key.reveal()

    def counted_tokens(self) -> Counter[str]:
        """The engine's own counters of tokens, `prompt` and `generation`."""
        header = {"Authorization": f"Bearer {self.key}"}
        with self.connect() as endpoint:
            text = httpx.get(f"{endpoint.url}/metrics", headers=header, timeout=60).text
        found = Counter[str]()
        for kind, value in re.findall(r"^(?:vllm|sglang):(prompt|generation)_tokens_total{.* (\S+)$", text, re.M):
            found[kind] += int(float(value))
        return found

    def places_of_the_key(self) -> list[Path]:
        """The files of the deployment, and the command lines of the machine, that hold the key."""
        files = (path for path in self.directory.rglob("*") if path.is_file())
        # asked one by one: processes end meanwhile
        lines = (path for path in Path("/proc").glob("[0-9]*/cmdline") if path.exists())
        return [path for path in chain(files, lines) if self.key in path.read_text(errors="replace")]
