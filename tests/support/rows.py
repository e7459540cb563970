"""One test for many rows: all that fail are shown, each with its name, what was expected and what was found."""

from __future__ import annotations

import traceback
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any, TypeVar

import pytest
import yaml

Row = TypeVar("Row")

# What a failing row raises; `pytest.raises` without an exception raises the second one.
PROBLEMS = (Exception, pytest.fail.Exception)


_LOADER = getattr(yaml, "CSafeLoader", yaml.SafeLoader)


def rows_of(file: Path) -> Any:
    """The rows of a YAML file, read by the parser in C: the one in Python needs seconds for thousands of lines."""
    return yaml_document(file.read_text(encoding="utf-8"))


def yaml_document(text: str) -> Any:
    """The value of a YAML text, read by the parser in C."""
    return yaml.load(text, Loader=_LOADER)


def first_of(row: tuple[str, object]) -> str:
    """The name of a row that begins with it."""
    return row[0]


def each_of(
    rows: Iterable[Row] | Callable[[], Iterable[Row]], name: Callable[[Row], str] = str
) -> Callable[[Callable[[Row], None]], Callable[[], None]]:
    """Let a test hold for every row, as one case: pytest needs more time for a case than most rows do.

    Rows that take time to make are given as a function, which is called when the test runs.
    """
    listed = rows if callable(rows) else list(rows)

    def looped(check: Callable[[Row], None]) -> Callable[[], None]:
        # without functools.wraps, whose __wrapped__ would make pytest look for a fixture with the row's name
        def test() -> None:
            check_each(listed() if callable(listed) else listed, check, name)

        test.__name__, test.__doc__, test.__module__ = check.__name__, check.__doc__, check.__module__
        test.__qualname__ = check.__qualname__
        return test

    return looped


def check_each(rows: Iterable[Row], check: Callable[[Row], object], name: Callable[[Row], str] = str) -> None:
    """Run a check on every row, also after one has failed. Raises AssertionError with all that fail."""
    number, failed = 0, []
    for number, row in enumerate(rows, 1):
        try:
            check(row)
        except PROBLEMS as problem:
            failed.append((f"{number}, {name(row)}: {_told(problem)}", problem))
    assert number, "no rows: the test would show nothing"
    if failed:
        texts = "\n".join(text for text, _ in failed)
        raise AssertionError(f"{len(failed)} of {number} rows fail:\n{texts}") from failed[0][1]


def _told(problem: BaseException) -> str:
    """The place in the check and what pytest says there."""
    frames = traceback.extract_tb(problem.__traceback__)
    # the first frame is check_each, the second one the check
    place = frames[min(1, len(frames) - 1)]
    said = str(problem) or place.line or ""
    return f"{Path(place.filename).name}:{place.lineno}: {type(problem).__name__}: {said}"
