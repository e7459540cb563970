"""The words that the program does not use, what to write instead, and a reader of every text in the repository.

`python -m tools.language [PATH ...]` prints each word that is still there, with its place and its replacement.
"""

from __future__ import annotations

import ast
import io
import re
import sys
import tokenize
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import yaml

from tests.support.trees import nodes_of

HERE = Path(__file__).resolve()
ROOT = HERE.parents[1]


@dataclass(frozen=True)
class Rule:
    """A regular expression for what is not written, in which a space is any white space, and what to write instead."""

    pattern: str
    instead: str

    @cached_property
    def compiled(self) -> re.Pattern[str]:
        """The pattern, for text whose case does not matter."""
        return re.compile(self.pattern.replace(" ", r"\s+"), re.IGNORECASE)


RULES = (
    # plain words
    Rule(r"\banew\b", "again, new"),
    Rule(r"\baloud\b", "reported, with the reason"),
    Rule(r"\balone\b", "only (`for vLLM only`), by itself, without …"),
    Rule(r"\bwho(so)?ever\b", "the user, the caller, anyone who"),
    Rule(r"\b(no|some|any|every)body\b", "name the subject: you, the user, a client, another process, this project"),
    Rule(r"\bone's( own)?\b", "your, custom (`a custom catalog`)"),
    Rule(r"\b(is|are|was|were|be) told\b|\btold\b", "reported, shown, given"),
    Rule(r"\bfor want of\b", "because … is missing, out of (memory)"),
    Rule(r"\bin vain\b", "without success, timed out"),
    Rule(r"\bplainly\b|\bplain decoding\b|\bdecodes? plain\b", "without speculative decoding"),
    Rule(r"\bmend(s|ed|ing)?\b|\bcur(e|es|ed|ing)\b", "fix"),
    Rule(r"\blies\b|\blie (in|on|at|there|beside|under|behind)\b", "is, is stored"),
    Rule(r"\b(stands?|stood|standing)\b", "is, is set, is written, is listed; replaces"),
    Rule(r"\bbr(ing|ings|inging|ought)\b", "downloads, comes with, returns, gives"),
    Rule(
        r"\b(is|are|was|were) no\b(?! (longer|more|less|fewer|larger|smaller|better|slower|faster|older|newer)\b)",
        "is missing, is not a …, does not exist, without",
    ),
    Rule(r"\b(held|holds?|holding)\b[^.;:\n]{0,50}? against\b", "checked against, compared with"),
    Rule(r"\bcounts? more\b", "overrides, takes precedence"),
    Rule(r"\b(do|does|did) not count\b(?! (by|how)\b)", "is ignored"),
    Rule(r"\b(do|does|did|not) (come|came|comes) up\b|\bcomes? up\b", "starts; fails to start"),
    Rule(r"\bc[oa]mes? of\b|\bbecomes? of\b", "the result of, what … returns"),
    Rule(r"\b(gave|gives?|giving) way\b", "is replaced by, restores"),
    Rule(r"\bsee to\b", "check, make sure"),
    Rule(r"\b(is|are|was|were|be|been) looked at\b", "is checked, is read"),
    Rule(r"\bturn(s|ed|ing)? \w* ?away\b", "rejects"),
    Rule(r"\b(is|are) still to\b|\b(is|are|was|were) to (be|come)\b", "must be, will be, remains, pending"),
    Rule(r"\bforesaw\b|\bforesees?\b", "expected; unexpected"),
    Rule(r"\bmeans nothing\b", "is not valid, is unknown"),
    Rule(r"(\bempty|\bnothing|\bnone|`) where\b", "if"),
    Rule(r"\blook(s|ed|ing)? at\b", "checks, reads, searches"),
    Rule(r"\b(goes|go|went|gone|going) on\b", "continues, keeps running"),
    Rule(r"\bso many\b", "the number itself, `this many`"),
    Rule(r"\bat the (most|least)\b", "at most, at least"),
    Rule(r"\ball the same\b", "still"),
    Rule(r"\bin silence\b", "without an error"),
    Rule(r"\bunasked\b", "by default, automatically"),
    Rule(r"\bin order to\b", "to"),
    Rule(r"\b(e\.g\.|i\.e\.)", "for example, that is"),
    Rule(r"\butili[sz]e[sd]?\b|\bleverag(e|es|ed|ing)\b", "use"),
    Rule(r"\bvia\b", "with, through, by"),
    Rule(r"\bprior to\b", "before"),
    Rule(r"\b(is|are) able to\b", "can"),
    Rule(r"\bnote that\b|\bsimply\b|\bobviously\b|\bof course\b", "nothing: the sentence says it without"),
    Rule(r"\b(don|doesn|can|won|isn|aren|didn|couldn)'t\b", "do not, does not, cannot, …"),
    Rule(r"\b(seamless|blazing|powerful|robust|effortless)(ly)?\b", "the number, or the fact that a test shows"),
    # the field's terms: docs/reference/glossary.md
    Rule(
        r"\b(one|two|three|four|eight|sixteen|many|more|all|several|\d+) streams?\b|\bstreams at (a|the same) time\b",
        "concurrency (`at concurrency 8`), requests at the same time",
    ),
    Rule(r"(?<![-\w])slots?(?![-\w])", "max_num_seqs, sequence"),
    Rule(r"\bbudgets?\b", "max_num_batched_tokens"),
    Rule(r"\bown head\b|\bhead of its own\b", "MTP head"),
    Rule(r"\bpieces?\b", "chunks"),
    Rule(r"\bverbs?\b", "command"),
    Rule(r"\bforms? of (the |a )?(target|weights?|model)\b|\b(another|published|every) forms?\b", "quantization"),
    Rule(r"(?<![-\w/])quantis(ation|ed|es?|ing)\b", "quantization, quantized"),
    Rule(r"\b(the|a) (?-i:hub)\b", "Hugging Face Hub, the Hub"),
    Rule(r"\bcontainer engines?\b", "Docker"),
    Rule(r"\bthe (own )?key (of|for) the API\b", "API key"),
)


def _begins_words(pattern: str) -> bool:
    """Whether each alternative of a pattern begins at a word."""
    depth, begins = 0, [0]
    for place, sign in enumerate(pattern):
        depth += (sign == "(") - (sign == ")")
        if sign == "|" and not depth:
            begins.append(place + 1)
    return all(pattern.startswith(r"\b", place) for place in begins)


_ANYWHERE = [rule for rule in RULES if not _begins_words(rule.pattern)]
# All other rules in one: most passages have no hit, and one search tells it.
_AT_WORDS = re.compile(
    rf"\b(?:{'|'.join(rule.pattern for rule in RULES if _begins_words(rule.pattern))})".replace(" ", r"\s+"),
    re.IGNORECASE,
)

_LOADER = getattr(yaml, "CSafeLoader", yaml.SafeLoader)

# A page of the documents, as programs and texts name it.
PAGE = re.compile(r"docs/(?:tutorials|how-to|reference|explanation)/[\w./-]+\.(?:md|yaml)")

# Keys whose values are data: log lines, regular expressions, sources, and the prompts of measurements.
NOT_PROSE = {"pattern", "wrote", "mentions", "begins", "counts", "source", "prompt", "messages"}


@dataclass(frozen=True)
class Quoted:
    """Words that stay in one file because somebody else chose them, and the reason."""

    path: str
    text: str
    reason: str


QUOTED = (
    Quoted("benchmarks/load.py", "Go on.", "a prompt: it is part of the measurement"),
    Quoted("models/training/images.py", "I look at the image.", "a text that the tiny target is trained on"),
    Quoted("dflash_deploy/catalog/options.yaml", "--reasoning-budget", "the name of an option of vLLM and llama.cpp"),
    Quoted("dflash_deploy/catalog/options.yaml", "-sam-budget", "the name of an option of SGLang"),
    Quoted("dflash_deploy/catalog/options.yaml", "-via-", "the name of an option of SGLang"),
    Quoted("dflash_deploy/doctor/container.py", "container engine", "the name of a check in `doctor --json`"),
    Quoted("tools/diagnosis/shapes.py", "I slot launch_slot_", "a line of llama.cpp's log"),
    Quoted("tools/reference/faults.py", "the command alone", "a value of Means, with which tests declare faults"),
    Quoted("tools/reference/faults.py", "a hub of the tests", "a value of Means, with which tests declare faults"),
    Quoted("dflash_deploy/doctor/table.py", "container engine", "the name of a check in `doctor --json`"),
)


@dataclass(frozen=True)
class Passage:
    """Consecutive text of one file, and the line where it begins."""

    line: int
    text: str


@dataclass(frozen=True)
class Found:
    """A forbidden word and its place."""

    path: str
    line: int
    word: str
    instead: str

    def __str__(self) -> str:
        return f"{self.path}:{self.line}: not {self.word!r}, but: {self.instead}"


def texts() -> tuple[Path, ...]:
    """Every file that the rules hold for: not this one, which has the words."""
    patterns = (
        "dflash_deploy/**/*.py",
        "dflash_deploy/**/*.yaml",
        "docs/**/*.md",
        "docs/**/*.yaml",
        "*.md",
        "models/tiny/README.md",
        "env-templates/*.env",
        "compose/*.yaml",
        "connect/*",
        "images/**/Dockerfile",
        "images/*.hcl",
        "Makefile",
        "pyproject.toml",
        "benchmarks/**/*.py",
        "tools/**/*.py",
        "models/training/**/*.py",
        ".ci/run",
    )
    return tuple(sorted({file for pattern in patterns for file in ROOT.glob(pattern) if file.is_file()} - {HERE}))


def passages(file: Path) -> Iterator[Passage]:
    """The texts of a file: strings and comments of a program, values and comments of YAML, all of Markdown."""
    text = file.read_text(encoding="utf-8")
    match file.suffix:
        case ".py":
            yield from _python(file, text)
        case ".yaml":
            yield from _scalars(yaml.compose(text, Loader=_LOADER))
            yield from _comments(text)
        case ".md":
            yield Passage(1, text)
        case _:
            yield from _comments(text)


def found_in(file: Path) -> Iterator[Found]:
    """The forbidden words of one file, but those that it quotes."""
    path = str(file.relative_to(ROOT))
    quoted = [quote.text for quote in QUOTED if quote.path == path]
    for passage in passages(file):
        text = _without(passage.text, quoted)
        for rule in RULES if _AT_WORDS.search(text) else _ANYWHERE:
            for hit in rule.compiled.finditer(text):
                line = passage.line + text.count("\n", 0, hit.start())
                word = " ".join(passage.text[hit.start() : hit.end()].split())
                yield Found(path, line, word, rule.instead)


def _without(text: str, quoted: Iterable[str]) -> str:
    """The text, with code spans, named groups and quotations blanked: they are not prose of this project."""
    for quote in quoted:
        text = text.replace(quote, re.sub(r"[^\n]", "·", quote))
    text = re.sub(r"\{\w+\}", lambda group: "·" * len(group[0]), text)
    return re.sub(r"`[^`\n]+`|<a id=[^>\n]+>", lambda span: "`" + "·" * (len(span[0]) - 2) + "`", text)


def _python(file: Path, source: str) -> Iterator[Passage]:
    inside: set[int] = set()
    for node in nodes_of(file):
        if isinstance(node, ast.JoinedStr):
            inside.update(id(part) for part in node.values)
            parts = [part.value if isinstance(part, ast.Constant) else "…" for part in node.values]
            yield Passage(node.lineno, "".join(map(str, parts)))
        # a string without a space is a name, a key or a path
        elif isinstance(node, ast.Constant) and id(node) not in inside and " " in str(node.value):
            yield Passage(node.lineno, str(node.value))
    comments = (
        (token.start[0], token.string[1:])
        for token in tokenize.generate_tokens(io.StringIO(source).readline)
        if token.type == tokenize.COMMENT
    )
    yield from _joined(comments)


def _comments(text: str) -> Iterator[Passage]:
    hits = ((number, re.search(r"(?:^|\s)(?:#|//)+ (.*)", line)) for number, line in enumerate(text.splitlines(), 1))
    yield from _joined((number, hit[1]) for number, hit in hits if hit)


def _joined(lines: Iterable[tuple[int, str]]) -> Iterator[Passage]:
    """Comments on consecutive lines as one passage."""
    block: list[tuple[int, str]] = []
    for number, line in lines:
        if block and number != block[-1][0] + 1:
            yield Passage(block[0][0], "\n".join(text for _, text in block))
            block = []
        block.append((number, line))
    if block:
        yield Passage(block[0][0], "\n".join(text for _, text in block))


def _scalars(node: yaml.Node | None) -> Iterator[Passage]:
    if isinstance(node, yaml.MappingNode):
        for key, value in node.value:
            if key.value not in NOT_PROSE:
                yield from _scalars(value)
    elif isinstance(node, yaml.SequenceNode):
        for value in node.value:
            yield from _scalars(value)
    elif isinstance(node, yaml.ScalarNode) and " " in node.value:
        yield Passage(node.start_mark.line + 1, node.value)


def main(places: list[str]) -> int:
    """Print every forbidden word, or those of the files whose path begins as named. Returns the exit code."""
    files = [file for file in texts() if not places or str(file.relative_to(ROOT)).startswith(tuple(places))]
    found = sorted(str(one) for file in files for one in found_in(file))
    print(*found, f"{len(found)} words", sep="\n")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
