"""Fingerprints of known engine failures, each with its cause and its fix."""

from __future__ import annotations

import re
from functools import cached_property
from typing import Annotated, Any, Literal

from packaging.specifiers import InvalidSpecifier, SpecifierSet
from packaging.version import InvalidVersion, Version
from pydantic import AfterValidator, Field, field_validator, model_validator

from dflash_deploy.catalog.patterns import slow_because
from dflash_deploy.catalog.releases import EngineName
from dflash_deploy.catalog.schema import Entry
from dflash_deploy.serve.settings import Settings
from dflash_deploy.serve.speculation import PROMPT_TOKENS

FIXABLE = (
    Settings.attention_backend,
    Settings.dflash_attention_backend,
    Settings.kv_cache_dtype,
    Settings.dflash_kv_cache_dtype,
    Settings.enable_prefix_caching,
    Settings.max_num_batched_tokens,
    Settings.max_num_seqs,
)
"""Settings that `up --fix` may change. None of them changes the answers, the access or the weights."""

ENOUGH_TOKENS = f"{Settings.max_num_seqs} x ({Settings.dflash_num_spec_tokens} + 1) + {PROMPT_TOKENS}"
"""What `enough` means, in words."""


def _fixable(name: str) -> str:
    if name not in map(str, FIXABLE):
        raise ValueError(f"`up --fix` cannot change `{name}`: choose one of {', '.join(map(str, FIXABLE))}")
    return name


_PLACE = re.compile(r"\{(\w+)\}")

LONGEST_PATTERN = 300
"""Characters of a pattern; the longest packaged one has 168."""


OF_PART = (
    "the engine's code for {part} failed ({exception}): "
    "a defect of this release, or weights, settings or a GPU that it does not expect"
)
"""The cause of a row with `part`. `{exception}` is the type of the exception."""


class Failure(Entry):
    """One fingerprint. Of several that match equally good evidence, the first one in the file is the diagnosis."""

    id: Annotated[str, Field(pattern=r"^[a-z0-9]+(-[a-z0-9]+)*$")]
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


class Failures(Entry):
    """A file of fingerprints. Their order is significant: the first match wins."""

    failures: list[Failure]
