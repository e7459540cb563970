"""The hub: two servers on this machine, one for the API and the small files, one that stands for the CDN."""

import threading
from collections.abc import Callable
from types import TracebackType
from typing import Literal, Self

from tests.support.hub._handler import Server
from tests.support.hub._ledger import Seen, Stage
from tests.support.hub._repo import Commit, Repository, Sources
from tests.support.hub._state import Rule, State
from tests.support.hub.faults import Fault


class Hub:
    """A hub that the real client talks to through HF_ENDPOINT.

    `accounts` maps tokens to names; any other token is stale. `bare_401` leaves out the error code that the real hub
    leaves out as well (see `_access.py`).
    """

    def __init__(self, *, accounts: dict[str, str] | None = None, bare_401: bool = False) -> None:
        self._state = State(bare_401, accounts=dict(accounts or {}))
        self._servers = (Server("hub", self._state), Server("cdn", self._state))
        self._state.hub, self._state.cdn = (server.endpoint for server in self._servers)
        self._threads = [
            threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True)
            for server in self._servers
        ]

    def __enter__(self) -> Self:
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._state.closing.set()
        for server, thread in zip(self._servers, self._threads, strict=True):
            server.shutdown()
            thread.join()
            server.hang_up()
            server.server_close()
        if self._state.crashes and error is None:
            raise self._state.crashes[0]

    @property
    def endpoint(self) -> str:
        """What HF_ENDPOINT has to be."""
        return self._state.hub

    @property
    def cdn(self) -> str:
        """Where large files come from."""
        return self._state.cdn

    def add(
        self,
        name: str,
        files: Sources,
        *,
        access: Literal["public", "gated", "private"] = "public",
        readers: frozenset[str] = frozenset(),
    ) -> Repository:
        """Put up a repository, with one commit on `main`. Its large files are hashed here, at about 1.3 GB/s."""
        repository = Repository.of(name, files, access=access, readers=readers)
        self._state.repositories[name] = repository
        return repository

    def publish(self, name: str, files: Sources) -> Commit:
        """Commit changed files on `main`."""
        repository = self._state.repositories[name].with_commit(files)
        self._state.repositories[name] = repository
        return repository.head

    def faults(
        self,
        pattern: str,
        *script: Fault | None,
        stage: Stage = "body",
        method: str = "GET",
        forever: bool = False,
    ) -> None:
        """Let requests fail in turn: the first as the first of the script says, and so on; None lets one pass.

        `pattern` is a file (`model.safetensors`, `owner/name/*`) or, at the stage `api`, a path. After the script all
        is well, unless `forever` repeats its last line. Rules add up. `method` is GET, HEAD, POST or `*`.
        """
        with self._state.lock:
            self._state.rules.append(Rule(pattern, script, stage, method, forever))

    def heal(self) -> None:
        """Forget all faults."""
        with self._state.lock:
            self._state.rules.clear()

    def requests(self, pattern: str = "*", *, stage: Stage | None = None, method: str | None = None) -> list[Seen]:
        """The requests so far that were about such files or paths, in the order in which they came."""
        return self._those(
            lambda seen: (
                seen.about(pattern)
                and (stage is None or seen.stage == stage)
                and (method is None or seen.method == method)
            )
        )

    def sent(self, pattern: str = "*") -> int:
        """Bytes of the bodies of such files, errors and broken answers included."""
        return sum(seen.sent for seen in self.requests(pattern, stage="body"))

    @property
    def leaks(self) -> list[Seen]:
        """Requests that carried an Authorization header to the CDN, where it has no business."""
        return self._those(lambda seen: seen.site == "cdn" and seen.authorised)

    def forget(self) -> None:
        """Begin the count anew."""
        with self._state.lock:
            self._state.seen.clear()

    def _those(self, wanted: Callable[[Seen], bool]) -> list[Seen]:
        with self._state.lock:
            return [seen for seen in self._state.seen if wanted(seen)]
