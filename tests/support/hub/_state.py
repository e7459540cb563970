"""What the two servers of one hub share."""

import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass, field

from tests.support.hub._ledger import Seen, Stage
from tests.support.hub._repo import Repository, StoredFile
from tests.support.hub.faults import Fault


@dataclass
class Rule:
    """A script of faults for the requests that match, one for each in turn; None lets one pass."""

    pattern: str
    script: Sequence[Fault | None]
    stage: Stage
    method: str
    forever: bool
    """Whether the last line of the script holds for all requests after it."""
    taken: int = 0

    def next(self) -> Fault | None:
        """The fault of the next request."""
        number, self.taken = self.taken, self.taken + 1
        if number < len(self.script):
            return self.script[number]
        return self.script[-1] if self.forever and self.script else None


@dataclass(frozen=True)
class Link:
    """A signed address at the CDN."""

    repository: Repository
    file: StoredFile


@dataclass
class State:
    """Repositories, accounts, rules and the ledger. `lock` guards all that changes while the servers run."""

    bare_401: bool
    hub: str = ""
    cdn: str = ""
    repositories: dict[str, Repository] = field(default_factory=dict)
    accounts: dict[str, str] = field(default_factory=dict)
    rules: list[Rule] = field(default_factory=list)
    seen: list[Seen] = field(default_factory=list)
    links: list[Link] = field(default_factory=list)
    crashes: list[BaseException] = field(default_factory=list)
    closing: threading.Event = field(default_factory=threading.Event)
    lock: threading.Lock = field(default_factory=threading.Lock)

    def wait(self, seconds: float) -> None:
        """Sleep, but no longer than the hub lives."""
        self.closing.wait(seconds)

    def until_healed(self) -> None:
        """Wait until there are no rules any more, but no longer than the hub lives."""
        while self.rules and not self.closing.wait(0.02):
            pass

    def faults_of(self, request: Seen) -> list[Fault]:
        """The faults that the rules hold for this request; each rule that matches counts it."""
        with self.lock:
            taken = [
                rule.next()
                for rule in self.rules
                if rule.stage == request.stage and rule.method in {request.method, "*"} and request.about(rule.pattern)
            ]
        return [fault for fault in taken if fault is not None]

    def sign(self, repository: Repository, file: StoredFile) -> str:
        """A new address of the file at the CDN. No two are the same."""
        with self.lock:
            number = len(self.links)
            self.links.append(Link(repository, file))
        query = f"X-Xet-Cas-Uid=public&Expires={int(time.time()) + 3600}&Signature={number}"
        return f"{self.cdn}/xet-bridge-us/{repository.key}/{file.xet_hash}?{query}"
