"""Bounds what an engine compiles for a request: JSON schemas, patterns, grammars, and lists of its samplers.

Compiling keeps all structured answers waiting in vLLM, whose threads for it cannot be interrupted, and all clients of
llama.cpp. The time grows with the square or the cube of what a request may hold, so a small one can take minutes.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from typing import Any

from dflash_deploy.serve.gateway.asgi import ErrorAnswer
from dflash_deploy.serve.settings import Settings

KIB = 1 << 10

# Fields of a request that hold what is compiled, in the APIs of OpenAI, Anthropic, vLLM, SGLang and llama.cpp.
COMPILED = (
    *("response_format", "text", "output_format", "output_config", "tools", "functions"),
    *("structured_outputs", "structural_tag", "json_schema", "grammar", "regex", "ebnf"),
    *("guided_json", "guided_regex", "guided_grammar", "guided_choice"),
)

# Fields inside them whose text is a pattern or a grammar, and those whose text may be a document in JSON.
_PATTERNS = frozenset({"pattern", "regex", "grammar", "ebnf", "definition", "guided_regex", "guided_grammar"})
_DOCUMENTS = frozenset({"structural_tag", "json_schema", "json", "guided_json"})

MOST_DEPTH = 100  # levels of JSON, about 50 of objects: xgrammar 0.2.8 takes 0.7 s for 200, and over 8 s for 800
MOST_BREAKERS = 32  # llama.cpp compares each with all tokens: 16,000 take 25 s with a vocabulary of 1,000
MOST_ENTRIES = 1024  # of the other lists: llama.cpp tokenizes or runs each entry
LISTS = ("samplers", "stop", "logit_bias", "bad_words", "preserved_tokens", "grammar_triggers")

# Work: 1 is what an enum of one value takes; 1,000 of them, with the square, take llama.cpp 0.3 s.
#
# The units are measured with llama.cpp b11549 and xgrammar 0.2.8 on one busy core, so that the most of each takes at
# most 3 s: 1,000 alternatives, 32,000 characters of values, 300 optional properties of one object, 166 optional and
# 4,000 repeated items of one pattern. 200 tools with 40 optional properties each are half of it.
MOST_WORK = 1_000_000
CHARACTERS, OPTIONAL_PROPERTIES, OPTIONAL_ITEMS, ITEMS = 1 / 32, 1 / 3, 6, 1 / 4

_ITEM = re.compile(r"\\.|\[(?:\\.|[^\]\\])*\]|[()?*+|]|\{\s*(\d*)\s*(,?)\s*(\d*)\s*\}|\s+|.", re.DOTALL)


class GrammarLimits:
    """The limits of one endpoint."""

    def __init__(self, environment: Mapping[str, str]) -> None:
        """Raises Refused for a setting that is not valid."""
        self._most = Settings.max_grammar_kib.read(environment)

    def check(self, said: dict[str, Any]) -> None:
        """Raises ErrorAnswer for a request whose schemas, patterns and grammars would take the engine too long."""
        for name, most in (("dry_sequence_breakers", MOST_BREAKERS), *((name, MOST_ENTRIES) for name in LISTS)):
            if isinstance(said.get(name), list) and len(said[name]) > most:
                raise ErrorAnswer(400, f"`{name}` has more than {most} entries", "request_too_large")
        compiled = {name: said[name] for name in COMPILED if isinstance(said.get(name), dict | list | str)}
        if compiled and len(json.dumps(compiled, ensure_ascii=False)) > self._most * KIB:
            what = f"`{'`, `'.join(compiled)}` has more than {self._most} KiB ({Settings.max_grammar_kib})"
            raise ErrorAnswer(400, what, "grammar_too_large")
        if work(compiled) > MOST_WORK:
            raise ErrorAnswer(400, _TOO_MUCH, "grammar_too_large")


_TOO_MUCH = (
    f"the schemas or grammars would take too long to compile. The most is about {MOST_WORK**0.5:.0f} alternatives, "
    f"{round(MOST_WORK ** (1 / 3) / OPTIONAL_PROPERTIES)} optional properties of one object, "
    f"{int(MOST_WORK**0.5 / OPTIONAL_ITEMS)} optional items of one pattern, or {MOST_DEPTH} levels"
)


def work(compiled: object) -> float:
    """What compiling takes, in the unit of MOST_WORK; infinite for more levels than MOST_DEPTH."""
    total, waiting = 0.0, [("", compiled, 0)]
    while waiting:
        name, value, depth = waiting.pop()
        if depth > MOST_DEPTH:
            return float("inf")
        if isinstance(value, str):
            document = _document(value) if name in _DOCUMENTS else None
            if document is not None:
                waiting.append(("", document, depth + 1))
            elif name in _PATTERNS or name == "const":
                total += _of_pattern(value) if name in _PATTERNS else _characters(value)
        elif isinstance(value, list):
            total += len(value) ** 2 + _characters(*(one for one in value if isinstance(one, str)))
            waiting += [("", one, depth + 1) for one in value if not isinstance(one, str)]
        elif isinstance(value, dict):
            total += _of_object(value)
            waiting += [(key, one, depth + 1) for key, one in value.items()]
    return total


def _of_object(schema: dict[str, Any]) -> float:
    properties, required = schema.get("properties"), schema.get("required")
    total = 0.0
    if isinstance(properties, dict):
        always = {one for one in required if isinstance(one, str)} if isinstance(required, list) else set()
        total += (len(properties.keys() - always) * OPTIONAL_PROPERTIES) ** 3 + _characters(*properties)
    if isinstance(patterns := schema.get("patternProperties"), dict):
        total += sum(map(_of_pattern, patterns))
    return total


def _of_pattern(text: str) -> float:
    items, optional, alternatives = written_out(text)
    return (items * ITEMS) ** 2 + (optional * OPTIONAL_ITEMS) ** 2 + alternatives**2 + _characters(text)


def _characters(*texts: str) -> float:
    return float((sum(map(len, texts)) * CHARACTERS) ** 2)


def _document(text: str) -> Any:
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        return None


def written_out(text: str) -> tuple[int, int, int]:
    """What a pattern or a grammar has: items that its repetitions add, optional items, and alternatives.

    `?`, `*` and a range with a comma make an item optional.
    """
    groups, last, plain, optional, alternatives = [0], 0, 0, 0, 0
    for found in _ITEM.finditer(text):
        item = found[0]
        if item == "(":
            groups.append(0)
        elif item == ")":
            last = groups.pop() if len(groups) > 1 else 0
            groups[-1] += last
        elif item[0] == "{" and len(item) > 1:
            times = max(1, *(int(number[:9]) for number in (found[1], found[3]) if number), 1)
            groups[-1] += last * (times - 1)
            last *= times
            optional += bool(found[2])
        elif item in {"?", "*"}:
            optional += 1
        elif item == "|":
            alternatives += 1
        elif item != "+" and not item.isspace():
            last, plain = 1, plain + 1
            groups[-1] += 1
    return sum(groups) - plain, optional, alternatives
