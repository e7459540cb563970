"""What the server saw and what it sent, for tests to ask about."""

from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import Literal

Site = Literal["hub", "cdn"]

# Where a request stands: asking the API, asking where a file is, on the way there, or at its bytes.
Stage = Literal["api", "resolve", "redirect", "body"]


@dataclass
class Seen:
    """One request. The token itself is never kept."""

    site: Site
    method: str
    path: str
    range: str | None
    if_range: str | None
    authorised: bool
    """Whether an Authorization header came with it."""
    account: str | None
    """Whose token it was; None without one, and for a token that the hub does not know."""
    stage: Stage = "api"
    file: str = ""
    """`owner/name/path` of the file it was about."""
    status: int = 0
    sent: int = 0
    """Bytes of the body that were handed to the socket; some may not have arrived."""

    def about(self, pattern: str) -> bool:
        """Whether it was about a file, or else a path, that matches: `model.safetensors`, `o/name/*`, `/api/*`."""
        return matches(pattern, self.file) if self.file else fnmatchcase(self.path, pattern)


def matches(pattern: str, file: str) -> bool:
    """Whether `owner/name/path` matches a pattern of the whole, or of the path within the repository."""
    return fnmatchcase(file, pattern) or fnmatchcase(file.split("/", 2)[-1], pattern)
