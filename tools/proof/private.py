"""Takes out of the texts of a proof what tells whose machine it ran on.

The names of host and user, folders of paths, addresses of other machines and serial numbers. What identifies the run
stays: GPU, driver, versions, options and figures. A text that a person typed, such as EXTRA_ARGS, may say more.
"""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Iterable
from pathlib import Path

from dflash_deploy.redact import Redact, redact_by_shape

# Names that many machines and users have: they say nothing, and occur in ordinary text.
GENERIC = frozenset({"root", "user", "ubuntu", "debian", "admin", "nobody", "vllm", "localhost", "docker"})

_SHORTEST_NAME = 3

_HEX = "[0-9a-fA-F]"
_GROUPS = rf"{_HEX}{{1,4}}(?::{_HEX}{{1,4}}){{0,6}}"
_ENDINGS = "com|net|org|io|ai|dev|edu|corp|example|home|internal|intranet|lan|local"
_PART = r"[^\s/:'\"<>|,;=]+"

# Forms of what names a machine or person, and what is in its place. A path keeps its last part.
_SHAPES = (
    (re.compile(rf"\b(?:GPU-|MIG-)?{_HEX}{{8}}-(?:{_HEX}{{4}}-){{3}}{_HEX}{{12}}\b"), "[uuid]"),
    (re.compile(r"(?i)(\bserial(?: (?:number|no\.?))?\s*[:=#]?\s*)(?=\w*\d)\w{6,}"), r"\1[serial]"),
    (re.compile(r"[\w.+-]+@[\w-]+(?:\.[\w-]+)+"), "[address]"),
    (re.compile(r"(://)(?!localhost\b|127\.0\.0\.1\b|\[::1\])[^\s/:'\"<>]+"), r"\1[host]"),
    (re.compile(r"(?<![\w.])(?!127\.0\.0\.1\b|0\.0\.0\.0\b)\d{1,3}(?:\.\d{1,3}){3}(?![\w.]*\d)"), "[address]"),
    (re.compile(rf"(?<![\w:]){_GROUPS}::(?:{_GROUPS})?(?![\w:])"), "[address]"),
    (re.compile(rf"(?<![\w:]){_HEX}{{1,4}}(?::{_HEX}{{1,4}}){{4,7}}(?![\w:])"), "[address]"),
    (re.compile(rf"(?i)(?<![\w.-])(?:[a-z0-9-]+\.)+(?:{_ENDINGS})(?![\w.-]*\w)"), "[host]"),
    (re.compile(rf"(?<![\w.\]])(?:/(?:home|Users)/|~(?=[A-Za-z])){_PART}"), "..."),
    (re.compile(rf"(?<![\w.~\]-])(?<!:/)(?!/v1/)(?:~?\.{{0,3}}/(?:{_PART}/)+|~/)(?=[^\s/])"), ".../"),
)


def cleaner(names: Iterable[str], places: Iterable[Path]) -> Redact:
    """A function that takes these names, these folders and the forms above out of a text."""
    folders = sorted({str(place) for place in places} - {"/", "."}, key=len, reverse=True)
    words = sorted({name for name in names if len(name) >= _SHORTEST_NAME and name.lower() not in GENERIC})
    words.sort(key=len, reverse=True)
    named = [re.compile(rf"(?i)(?<![^\W_]){re.escape(name)}(?![^\W_])") for name in words]

    def clean(text: str) -> str:
        text = redact_by_shape(text)
        for folder in folders:
            text = text.replace(f"{folder}/", ".../").replace(folder, "...")
        for shape, instead in _SHAPES:
            text = shape.sub(instead, text)
        for name in named:
            text = name.sub("[name]", text)
        return text

    return clean


def of_this_machine(*places: Path) -> Redact:
    """The cleaner for this host and user, and for these folders."""
    host = os.uname().nodename
    users = (os.environ.get(name, "") for name in ("USER", "LOGNAME", "SUDO_USER"))
    home, prefix = Path.home(), Path(sys.prefix)
    return cleaner((host, host.partition(".")[0], *users, home.name), (*places, home, prefix, Path.cwd()))
