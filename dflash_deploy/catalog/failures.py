"""How engines fail: fingerprints of known failures, each with its cause and what to do about it."""

from __future__ import annotations

import re
from functools import cached_property
from typing import Annotated, Literal

from packaging.specifiers import InvalidSpecifier, SpecifierSet
from packaging.version import InvalidVersion, Version
from pydantic import Field, field_validator, model_validator

from dflash_deploy.catalog.releases import EngineName
from dflash_deploy.catalog.schema import Entry

Fixable = Literal[
    "ATTENTION_BACKEND",
    "DFLASH_ATTENTION_BACKEND",
    "KV_CACHE_DTYPE",
    "DFLASH_KV_CACHE_DTYPE",
    "ENABLE_PREFIX_CACHING",
    "MAX_NUM_BATCHED_TOKENS",
    "MAX_NUM_SEQS",
]
"""Settings that `up --fix` may change: none of them changes what is answered, to whom, or from which weights."""

_PLACE = re.compile(r"\{(\w+)\}")

_REPEATED_GROUP = re.compile(r"(?<!\\)\)[*+{]")
_ANYTHING = re.compile(r"(?<!\\)\.[*+]")
_REFERENCE = re.compile(r"\\[1-9]|\(\?P=")


class Failure(Entry):
    """One fingerprint. Every condition that it states has to hold; the first of the file that fits is the diagnosis."""

    id: Annotated[str, Field(pattern=r"^[a-z0-9]+(-[a-z0-9]+)*$")]
    pattern: Annotated[
        str, Field(description="regular expression that is searched in each line; empty: the ending alone tells")
    ] = ""
    where: Annotated[
        Literal["log", "kernel"], Field(description="whose lines: the engine's log, or the kernel's since the start")
    ] = "log"
    exit_codes: Annotated[
        list[int], Field(description="the engine ended with one of them; a negative one is a signal")
    ] = []
    out_of_memory: Annotated[bool, Field(description="the container's OOM flag is up")] = False
    restarted: Annotated[bool, Field(description="the runtime has started it again by itself")] = False
    engines: Annotated[list[EngineName], Field(description="whose failure it is; empty: anybody's")] = []
    versions: Annotated[str, Field(description="of the engine, as in `>=0.24,<0.26`; empty: all")] = ""
    effect: Annotated[
        Literal["ends", "costs"],
        Field(description="it ends or hangs the engine, or it only costs speed, memory or a feature"),
    ] = "ends"
    cause: Annotated[str, Field(min_length=10, description="in one sentence; `{name}` is a named group of the pattern")]
    do: Annotated[str, Field(min_length=10, description="a setting or a command; `{name}` as in `cause`")]
    fix: Annotated[
        dict[Fixable, str],
        Field(
            description="settings that `up --fix` may write. `half` halves what is there; `enough` is room for a draft "
            "of every sequence and 8192 tokens of prompts; empty leaves the choice to the engine"
        ),
    ] = {}
    source: str

    @field_validator("pattern")
    @classmethod
    def _reads_a_line_in_little_time(cls, pattern: str) -> str:
        """What makes a search take time that grows faster than the log is no pattern here."""
        try:
            compiled = re.compile(pattern)
        except re.error as problem:
            raise ValueError(f"no regular expression: {problem}") from None
        if _REPEATED_GROUP.search(pattern) or len(_ANYTHING.findall(pattern)) > 1 or _REFERENCE.search(pattern):
            raise ValueError("repeat no group, write `.*` once at most, and refer back to nothing")
        if pattern and compiled.search(""):
            raise ValueError("it fits an empty line")
        return pattern

    @field_validator("versions")
    @classmethod
    def _is_a_specifier(cls, versions: str) -> str:
        try:
            SpecifierSet(versions)
        except InvalidSpecifier:
            raise ValueError("write versions as in `>=0.24,<0.26`") from None
        return versions

    @model_validator(mode="after")
    def _says_when_and_fills_only_what_it_finds(self) -> Failure:
        if not (self.pattern or self.exit_codes or self.out_of_memory or self.restarted):
            raise ValueError("a fingerprint needs a pattern, exit_codes, out_of_memory or restarted")
        found = set(re.compile(self.pattern).groupindex)
        for text in (self.cause, self.do, *self.fix.values()):
            for name in _PLACE.findall(text):
                if name not in found:
                    raise ValueError(f"{{{name}}} is no named group of the pattern")
        return self

    @cached_property
    def compiled(self) -> re.Pattern[str]:
        """The pattern."""
        return re.compile(self.pattern)

    def concerns(self, engine: str, version: str) -> bool:
        """Whether it may be a failure of this engine. A version that cannot be compared is none that is left out."""
        if self.engines and engine not in self.engines:
            return False
        try:
            return Version(version.removeprefix("b")) in SpecifierSet(self.versions, prereleases=True)
        except InvalidVersion:
            return True


class Failures(Entry):
    """A file of fingerprints; their order counts."""

    failures: list[Failure]
