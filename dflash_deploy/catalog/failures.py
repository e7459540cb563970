"""Fingerprints of known engine failures, each with its cause and its fix, and a limit on their search time.

The search time of a fingerprint's regular expression grows at most with the square of a line, and never exponentially.
A search tries every place of a line as a beginning; from one beginning, a pattern that `slow_because` accepts reads the
line a limited number of times. `diagnosis.lines` limits the length of a line, and so the time of a search.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cache, cached_property
from graphlib import CycleError, TopologicalSorter
from typing import Annotated, Any, Literal

from packaging.specifiers import InvalidSpecifier, SpecifierSet
from packaging.version import InvalidVersion, Version
from pydantic import AfterValidator, Field, field_validator, model_validator

from dflash_deploy.catalog.read import Entry
from dflash_deploy.catalog.releases import EngineName
from dflash_deploy.serve.settings import Settings
from dflash_deploy.serve.speculation import PROMPT_TOKENS

MOST_REPEATS = 5

MOST_WAYS = 64  # ways to choose among alternatives and optional parts: each may be tried from every beginning
MOST_LEVELS = 20

ENDS_ANYTHING = 3  # characters that must follow `.*` before the next repeat

# Characters that represent all others in the comparison of two atoms.
_SAMPLE = frozenset({*map(chr, range(128)), "\u00e9", "\u4e2d", "\u2588", "\u00a0"})

_REFERENCE = re.compile(r"\\[1-9](?![0-7]{2})|\(\?P=")

# A group's beginning or end, or a character with what repeats it.
_TOKEN = re.compile(
    r"""
      (?P<syntax> \(\?P<\w+> | \(\?(?: : | <?[=!] | [aimsu]+[:)] )? | [()^$|] )
    | (?P<atom>
          \\(?: x[0-9a-fA-F]{2} | u[0-9a-fA-F]{4} | U[0-9a-fA-F]{8} | N\{[^}]*\} | [0-7]{1,3} | . )
        | \[\^?\]?(?:\\.|[^\]\\])*\]
        | .
      )
      (?: (?P<repeat> [*+?] | \{\d*,\d*\} | \{\d+\} ) [?+]? )?
    """,
    re.VERBOSE | re.DOTALL,
)

_REPEAT = re.compile(r"[*+{]")
_NO_WIDTH = frozenset({r"\b", r"\B", r"\A", r"\Z"})
_LOOKAROUND = frozenset({"(?=", "(?!", "(?<=", "(?<!"})
_ENCODED = re.compile(r"\\[xuUN0-7]")
_IGNORES_CASE = re.compile(r"\(\?[a-z]*i")


class _Slow(Exception):
    """Raised with the reason why a pattern may be too slow."""


@dataclass(frozen=True)
class _Reached:
    """What is known at one place of a pattern, of all ways to it.

    `open` are the repeats that may also match what follows. `fixed` are the characters since the last repeat that
    every way has. `fences` are the texts that ended `.*`: a later repeat that matches one reads a line many times.
    """

    open: frozenset[str] = frozenset()
    fixed: tuple[str, ...] = ()
    fences: frozenset[tuple[str, ...]] = frozenset()


def slow_because(pattern: str) -> str:
    """Return why a pattern may be too slow; empty if it is not.

    A repeat that is followed by a character that it does not match can end at one place only. Two repeats without such
    a character between them try every way to divide a text. `.*` occurs once, with three fixed characters behind it.
    """
    if _REFERENCE.search(pattern):
        return "it has a back-reference"
    try:
        _Walk(pattern).whole()
    except _Slow as slow:
        return str(slow)
    return ""


class _Walk:
    """Reads a pattern from left to right, and every alternative from the same place."""

    def __init__(self, pattern: str) -> None:
        self._tokens = list(_TOKEN.finditer(pattern))
        self._next = 0
        self._levels = self._repeats = self._anything = 0
        self._flags = re.DOTALL | (re.IGNORECASE if _IGNORES_CASE.search(pattern) else 0)

    def whole(self) -> None:
        """Read the whole pattern. Raises _Slow."""
        self._branches(_Reached())

    def _branches(self, start: _Reached) -> tuple[_Reached, int]:
        """Read alternatives until the end of their group. Return what is known behind them, and the number of ways."""
        self._levels += 1
        if self._levels > MOST_LEVELS:
            raise _Slow(f"its groups are nested deeper than {MOST_LEVELS} levels")
        now, ways = start, 1
        ends, total = list[_Reached](), 0
        while self._next < len(self._tokens):
            token = self._tokens[self._next]
            self._next += 1
            syntax = token["syntax"] or ""
            if syntax == ")":
                break
            if syntax == "|":
                ends.append(now)
                now, total, ways = start, total + ways, 1
            elif syntax.startswith("("):
                now, more = self._group(now, syntax)
                ways *= more
            elif not syntax:
                now = self._atom(now, token["atom"], token["repeat"] or "")
                ways *= 2 if token["repeat"] == "?" else 1
            if total + ways > MOST_WAYS:
                raise _Slow(f"it has more than {MOST_WAYS} ways to combine its alternatives and optional parts")
        self._levels -= 1
        return _joined([*ends, now]), total + ways

    def _group(self, now: _Reached, begin: str) -> tuple[_Reached, int]:
        if begin.endswith(")"):
            # flags of the whole pattern
            return now, 1
        if begin == "(?":
            raise _Slow("it has a group that is not one of (...), (?:...), (?P<name>...), a flag or a lookaround")
        behind, ways = self._branches(now)
        repeat = self._tokens[self._next]["atom"] if self._next < len(self._tokens) else None
        if repeat and _REPEAT.match(repeat):
            raise _Slow("a group is repeated")
        if repeat == "?":
            self._next += 1
        optional = repeat == "?" or begin in _LOOKAROUND
        return (_joined([now, behind]), ways + 1) if optional else (behind, ways)

    def _atom(self, now: _Reached, atom: str, repeat: str) -> _Reached:
        """Return what is known behind one character, class or repeat. Raises _Slow if a repeat divides a text."""
        if atom in _NO_WIDTH:
            return now
        repeats = repeat not in {"", "?"}
        if repeats:
            self._count(atom)
            self._refuse_overlap(now, atom)
        optional = repeat in {"?", "*"} or repeat.startswith(("{0", "{,"))
        fixed = () if repeats else now.fixed if optional else (*now.fixed, atom)
        still, fences = now.open, now.fences
        if not optional:
            if "." in still and len(fixed) >= ENDS_ANYTHING:
                fences |= {fixed}
            still = frozenset(one for one in still if not self._ends(one, atom, fixed))
        return _Reached(still | {atom} if repeats else still, fixed, fences)

    def _count(self, atom: str) -> None:
        self._repeats += 1
        self._anything += atom == "."
        if self._anything > 1 or self._repeats > MOST_REPEATS:
            raise _Slow(f"it has more than one `.*` or more than {MOST_REPEATS} repeats")

    def _refuse_overlap(self, now: _Reached, atom: str) -> None:
        before = [one for one in sorted(now.open) if one == "." or self._overlap(one, atom)]
        if before:
            raise _Slow(f"`{before[0]}` and `{atom}` are repeated without a character between them that ends the first")
        if any(all(self._overlap(atom, one) for one in fence) for fence in now.fences):
            raise _Slow(f"`{atom}` also matches the text that ends `.*`")

    def _ends(self, open_repeat: str, atom: str, fixed: tuple[str, ...]) -> bool:
        if open_repeat == ".":
            return len(fixed) >= ENDS_ANYTHING
        return not self._overlap(open_repeat, atom)

    def _overlap(self, one: str, other: str) -> bool:
        """Whether some character matches both atoms."""
        if any("[" in atom and _ENCODED.search(atom) for atom in (one, other)):
            # the ends of its ranges are not among the compared characters
            return True
        chars = _SAMPLE.union(one, other)
        return not _matched(one, chars, self._flags).isdisjoint(_matched(other, chars, self._flags))


def _joined(ways: Iterable[_Reached]) -> _Reached:
    """What is known where several ways meet: each may have led there."""
    first, *others = ways
    for other in others:
        # a character of one way or of another, counted from here
        fixed = tuple(
            one if one == two else f"(?:{one}|{two})"
            for one, two in zip(reversed(first.fixed), reversed(other.fixed), strict=False)
        )
        first = _Reached(first.open | other.open, fixed[::-1], first.fences | other.fences)
    return first


@cache
def _matched(atom: str, chars: frozenset[str], flags: int) -> frozenset[str]:
    matches = re.compile(atom, flags).fullmatch
    return frozenset(char for char in chars if matches(char))


# Settings that `up --fix` may change. None of them changes the answers, the access or the weights.
FIXABLE = (
    Settings.attention_backend,
    Settings.dflash_attention_backend,
    Settings.kv_cache_dtype,
    Settings.dflash_kv_cache_dtype,
    Settings.enable_prefix_caching,
    Settings.max_num_batched_tokens,
    Settings.max_num_seqs,
)

# What `enough` means, in words.
ENOUGH_TOKENS = f"{Settings.max_num_seqs} x ({Settings.dflash_num_spec_tokens} + 1) + {PROMPT_TOKENS}"


def _fixable(name: str) -> str:
    if name not in map(str, FIXABLE):
        raise ValueError(f"`up --fix` cannot change `{name}`: choose one of {', '.join(map(str, FIXABLE))}")
    return name


_PLACE = re.compile(r"\{(\w+)\}")

LONGEST_PATTERN = 300  # characters of a pattern; the longest packaged one has 168


# The cause of a row with `part`. `{exception}` is the type of the exception.
OF_PART = (
    "the engine's code for {part} failed ({exception}): "
    "a defect of this release, or weights, settings or a GPU that it does not expect"
)


class Failure(Entry):
    """One fingerprint. Of several that match equally good evidence, the one that is `over` the others counts."""

    id: Annotated[str, Field(pattern=r"^[a-z0-9]+(-[a-z0-9]+)*$")]
    over: Annotated[
        list[str],
        Field(description="ids of rows that match some of its lines too, and say less: it counts before them"),
    ] = []
    pattern: Annotated[
        str, Field(description="regular expression, searched in each line; empty: only the exit is checked")
    ] = ""
    where: Annotated[
        Literal["log", "kernel"], Field(description="the lines: the engine's log, or the kernel log since the start")
    ] = "log"
    exit_codes: Annotated[
        list[int], Field(description="exit codes of the engine, any of them; a negative one is a signal")
    ] = []
    out_of_memory: Annotated[bool, Field(description="the container's OOM flag is set")] = False
    restarted: Annotated[bool, Field(description="the runtime has restarted the engine")] = False
    engines: Annotated[list[EngineName], Field(description="engines that fail this way; empty: all")] = []
    versions: Annotated[str, Field(description="versions of the engine, as in `>=0.24,<0.26`; empty: all")] = ""
    echo: Annotated[
        bool, Field(description="the line only reports another failure: it counts if nothing else tells a cause")
    ] = False
    general: Annotated[
        bool,
        Field(
            description="it names a family of failures: it counts if no other row matches the errors of the log, and "
            "if a row matches each of those errors; of a line of the kernel, which engines that work cause, too: it "
            "counts if the log has no error"
        ),
    ] = False
    part: Annotated[
        str,
        Field(
            description="the part of the engine whose code failed, in place of `cause`: only the frame that raised the "
            "exception is searched, and it counts if no other row matches; `{name}` as in `cause`"
        ),
    ] = ""
    request: Annotated[
        bool,
        Field(
            description="it fails a request, not the engine: it counts only if the engine is not known to have ended"
        ),
    ] = False
    last: Annotated[
        bool, Field(description="the engine hangs there: it counts only if the log's last two messages are such lines")
    ] = False
    during: Annotated[
        Literal["any", "steps"],
        Field(description="`steps`: it does not name an end while the engine loads weights, since no step has run yet"),
    ] = "any"
    effect: Annotated[
        Literal["ends", "costs"],
        Field(description="`ends`: the engine exits or hangs; `costs`: it only loses speed, memory or a feature"),
    ] = "ends"
    cause: Annotated[str, Field(min_length=10, description="in one sentence; `{name}` is a named group of the pattern")]
    do: Annotated[str, Field(min_length=10, description="a setting or a command; `{name}` as in `cause`")]
    remedies: Annotated[
        dict[EngineName, Annotated[str, Field(min_length=10)]],
        Field(description="what to do with one engine, where `do` names a setting or argument that it does not have"),
    ] = {}
    fix: Annotated[
        dict[Annotated[str, AfterValidator(_fixable)], str],
        Field(
            description="settings that `up --fix` may write. `half` halves the current value; `enough` is "
            f"{ENOUGH_TOKENS}; an empty value lets the engine choose"
        ),
    ] = {}
    source: str

    @model_validator(mode="before")
    @classmethod
    def _words_the_cause_of_a_part(cls, row: Any) -> Any:
        """A row with `part` has no cause of its own: nothing more is known."""
        if isinstance(row, dict) and row.get("part"):
            return {**row, "cause": OF_PART.format(part=row["part"], exception="{exception}")}
        return row

    @field_validator("pattern")
    @classmethod
    def _reads_a_line_in_little_time(cls, pattern: str) -> str:
        """Refuse patterns whose search time grows faster than the log."""
        if len(pattern) > LONGEST_PATTERN:
            raise ValueError(f"the pattern is too long: {len(pattern)} characters (limit: {LONGEST_PATTERN})")
        try:
            compiled = re.compile(pattern)
        except (re.error, OverflowError, RecursionError) as problem:
            raise ValueError(f"not a valid regular expression: {problem}") from None
        if reason := slow_because(pattern):
            raise ValueError(f"the pattern is too slow: {reason}")
        if pattern and compiled.search(""):
            raise ValueError("the pattern matches an empty line")
        return pattern

    @field_validator("versions")
    @classmethod
    def _is_a_specifier(cls, versions: str) -> str:
        try:
            SpecifierSet(versions)
        except InvalidSpecifier:
            raise ValueError(f"`{versions}` is not a version range: write it as in `>=0.24,<0.26`") from None
        return versions

    @model_validator(mode="after")
    def _says_when_and_fills_only_what_it_finds(self) -> Failure:
        if not (self.pattern or self.exit_codes or self.out_of_memory or self.restarted):
            raise ValueError("a fingerprint needs a pattern, exit_codes, out_of_memory or restarted")
        found = {*re.compile(self.pattern).groupindex, *({"exception"} if self.part else ())}
        for text in (self.cause, self.do, *self.remedies.values(), *self.fix.values()):
            for name in _PLACE.findall(text):
                if name not in found:
                    raise ValueError(f"`{{{name}}}` is not a named group of the pattern")
        return self

    @cached_property
    def compiled(self) -> re.Pattern[str]:
        """The compiled pattern."""
        return re.compile(self.pattern)

    @cached_property
    def names_an_end(self) -> bool:
        """Whether a line of the log that matches may name the cause, wherever it is in the log."""
        return bool(self.pattern) and self.where == "log" and not (self.echo or self.last or self.part)

    @cached_property
    def _range(self) -> SpecifierSet:
        """The versions, parsed."""
        return SpecifierSet(self.versions, prereleases=True)

    def remedy(self, engine: str) -> str:
        """What to do with this engine."""
        return next((text for name, text in self.remedies.items() if name == engine), self.do)

    def concerns(self, engine: str, version: str) -> bool:
        """Whether it applies to this engine. A version that cannot be parsed matches every range."""
        if self.engines and engine not in self.engines:
            return False
        # most rows have no range, and each reading of a log asks each row
        if not self.versions:
            return True
        try:
            return Version(version.removeprefix("b")) in self._range
        except InvalidVersion:
            return True


def ranked(failures: Iterable[Failure]) -> tuple[Failure, ...]:
    """Each row before those that it is `over`, otherwise by id: the order of files and of rows has no meaning.

    Raises ValueError if rows are over each other.
    """
    known = {failure.id: failure for failure in failures}
    order = TopologicalSorter[str](dict.fromkeys(known, ()))
    for failure in known.values():
        for lower in known.keys() & set(failure.over):
            order.add(lower, failure.id)
    try:
        order.prepare()
    except CycleError as problem:
        raise ValueError(f"these rows are over each other: {', '.join(sorted(set(problem.args[1])))}") from None
    found = list[Failure]()
    while ready := sorted(order.get_ready()):
        found += (known[name] for name in ready)
        order.done(*ready)
    return tuple(found)


class Failures(Entry):
    """A file of fingerprints, in any order."""

    failures: list[Failure]

    @model_validator(mode="after")
    def _has_one_order(self) -> Failures:
        ranked(self.failures)
        return self
