"""Errors that no code expects: the lines that a user pastes into an issue, without secrets, values and home paths."""

from __future__ import annotations

import os
import platform
import re
import sys
import traceback
from collections.abc import Iterator, Sequence
from pathlib import Path

from dflash_deploy import __version__
from dflash_deploy.cli.shown import shortened, visible
from dflash_deploy.errors import BadInput, Defect, DeployError, PreflightRefused
from dflash_deploy.redact import Redact, redact_by_shape

ISSUES = "https://github.com/dflash-deploy/dflash-deploy/issues"

LONGEST_MESSAGE = 300  # characters of the exception's own message
FRAMES = 8  # frames of the traceback, the innermost last
_PACKAGES = Path(__file__).parents[2]

# The hint for what the system refused: a condition of the machine and not a defect.
OF_SYSTEM = "check the path, its owner (`ls -l`) and the disk (`df -h`), then run the same command again"

_HOME = re.compile(r"/(?:home|Users)/[^/\s'\":,;]+|/root(?![\w.-])")

_OPTION = re.compile(r"(--?[a-z][a-z-]*)(=.*)?", re.DOTALL)


def failure_of(problem: Exception) -> DeployError:
    """Return the error that is shown for an exception that no code expects: a condition of the machine, or a defect."""
    if isinstance(problem, MemoryError):
        return PreflightRefused("not enough memory", hint="close other programs, or check the limit with `ulimit -v`")
    if isinstance(problem, RecursionError):
        return BadInput(
            "a file or an answer is nested too deeply to be read",
            hint="DFLASH_DEBUG=1 shows which; if all of them are as they should be, report it",
            detail=_whole(problem),
        )
    if isinstance(problem, OSError) and problem.strerror:
        place = f"{problem.filename}: " if problem.filename else ""
        return PreflightRefused(f"{place}{problem.strerror}", hint=OF_SYSTEM)
    return defect_of(problem)


def defect_of(problem: BaseException) -> Defect:
    """Return the error that is shown for an exception that no code expects."""
    return Defect(
        f"unexpected: {type(problem).__name__}: {problem}",
        hint=f"this is a defect of dflash-deploy: report it with the lines below at {ISSUES}",
        # shown like the rest, and not raised: what Python itself prints is not redacted
        detail=_whole(problem),
        cause=problem,
    )


def _whole(problem: BaseException) -> str:
    return "".join(traceback.format_exception(problem)) if os.environ.get("DFLASH_DEBUG") else ""


def report_of(problem: BaseException, name: str, arguments: Sequence[str], redact: Redact) -> str:
    """Return what an issue needs to know about an exception: versions, command, error and the last frames.

    `name` is the command's, as `keys rotate`. Of `arguments` only the names of options are shown.
    """
    lines = [
        f"dflash-deploy {__version__}, Python {platform.python_version()}, {platform.system()} "
        f"{platform.release()} {platform.machine()}",
        f"command  {' '.join(['dflash-deploy', *_without_values(name, arguments)])}",
        f"error    {_said(problem, redact)}",
    ]
    cause = problem.__cause__ or problem.__context__
    if cause is not None:
        lines.append(f"after    {_said(cause, redact)}")
    for frame in traceback.extract_tb(problem.__traceback__)[-FRAMES:]:
        lines.append(f"at       {_relative(Path(frame.filename))}:{frame.lineno} in {frame.name}")
    return "\n".join(lines)


def _without_values(name: str, arguments: Sequence[str]) -> Iterator[str]:
    """The command's name and its arguments, each value replaced: it may be a path, a URL or a key."""
    words = name.split()
    yield from words
    left = [*words]
    for argument in arguments:
        option = _OPTION.fullmatch(argument)
        if option is not None:
            yield option[1] + ("=…" if option[2] else "")
        elif left and argument == left[0]:
            left.pop(0)
        else:
            yield "…"


def _said(problem: BaseException, redact: Redact) -> str:
    # secrets before the cut: a part of a secret would not be found
    # home directories contain the user's name
    text = " ".join(_HOME.sub("~", redact_by_shape(redact(str(problem)))).split())
    return visible(f"{type(problem).__name__}: {shortened(text, LONGEST_MESSAGE)}")


def _relative(file: Path) -> Path:
    """A source file by its place below the packages or the standard library, else by its name."""
    for root in (_PACKAGES, *(Path(place) for place in sys.path if place.startswith("/"))):
        if root != Path("/") and file.is_relative_to(root):
            return file.relative_to(root)
    return Path(file.name)
