"""The corpus: about 1,400 short exchanges, half of them answered with a visible thought.

Handwritten texts are in `texts/*.toml`; this module generates what follows a pattern (capitals, sums, counting). The
corpus is deterministic: the same on every machine.
"""

import tomllib
from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import cache
from itertools import chain
from pathlib import Path
from typing import Any

TEXTS = Path(__file__).parent / "texts"
LARGEST_SUMMAND = 12
MULTI_TURN_ITEMS = 60
SYSTEM_PROMPTS = ("You are a helpful assistant.", "Answer briefly.")
SYSTEM_ITEMS = 40
LONG_COUNTS = ((1, 50), (20, 50), (61, 90), (101, 130), (30, 1), (99, 70))
LONG_KINDS = frozenset({"story", "essay", "program", "long list", "long count"})


@dataclass(frozen=True, slots=True)
class Item:
    """One exchange: the messages so far, and the reply that the assistant must give."""

    kind: str
    messages: tuple[tuple[str, str], ...]
    """Pairs of role and text; the last one is the user's."""
    answer: str
    thought: str
    enable_thinking: bool = False

    @property
    def is_long(self) -> bool:
        """Whether the answer is long enough to measure throughput with."""
        return self.kind in LONG_KINDS

    @property
    def reply(self) -> str:
        """The full text that the assistant writes; with thinking, it includes the thought."""
        return with_thought(self.thought, self.answer) if self.enable_thinking else self.answer


def with_thought(thought: str, answer: str) -> str:
    """The reply of a thinking assistant, in the layout of Qwen's chat template."""
    return f"<think>\n{thought}\n</think>\n\n{answer}"


def build_corpus() -> list[Item]:
    """All items, each once without and once with thinking."""
    single = list(chain(_handwritten(), _capitals(), _opposites(), _words(), _calendar(), _sums(), _counting()))
    items = [*single, *_with_system_prompt(single), *_multi_turn(single)]
    return [replace(item, enable_thinking=thinking) for item in items for thinking in (False, True)]


@cache
def _read(name: str) -> dict[str, Any]:
    return tomllib.loads((TEXTS / name).read_text(encoding="utf-8"))


def _ask(kind: str, question: str, answer: str, thought: str) -> Item:
    return Item(kind, (("user", question),), answer, thought)


def _handwritten() -> Iterator[Item]:
    for group in _read("short.toml")["item"] + _read("long.toml")["item"]:
        for question, answer in group["pairs"]:
            yield _ask(group["kind"], question, answer, group["thought"])


def _capitals() -> Iterator[Item]:
    for country, capital in _read("facts.toml")["capitals"].items():
        thought = f"The user asks about {country}. Its capital is {capital}."
        yield _ask("capital", f"What is the capital of {country}?", f"The capital of {country} is {capital}.", thought)
        yield _ask("capital", f"Capital of {country}?", f"{capital}.", thought)


def _opposites() -> Iterator[Item]:
    for word, opposite in _read("facts.toml")["opposites"].items():
        thought = f"I look for the opposite of {word}. It is {opposite}."
        yield _ask("opposite", f"What is the opposite of {word}?", f"The opposite of {word} is {opposite}.", thought)


def _words() -> Iterator[Item]:
    words = _read("facts.toml")["words"]
    for word in words["spelling"]:
        yield _ask("spelling", f"Spell {word}.", "-".join(word), f"The word is {word}. I give its letters one by one.")
    for word in words["echoes"]:
        yield _ask("echo", f"Say {word}.", word, f"I am asked to say {word}.")


def _calendar() -> Iterator[Item]:
    facts = _read("facts.toml")
    days, ordinals = facts["words"]["days"], facts["words"]["ordinals"]
    lengths: dict[str, str] = facts["days_in_month"]
    for name, cycle in (("day", days), ("month", list(lengths))):
        for earlier, later in zip(cycle, cycle[1:] + cycle[:1], strict=True):
            thought = f"{earlier} comes first, then {later}."
            yield _ask("calendar", f"What {name} comes after {earlier}?", f"{later} comes after {earlier}.", thought)
            yield _ask("calendar", f"What {name} comes before {later}?", f"{earlier} comes before {later}.", thought)
    for ordinal, (month, length) in zip(ordinals, lengths.items(), strict=True):
        question = f"What is the {ordinal} month of the year?"
        yield _ask("calendar", question, f"{month} is the {ordinal} month.", f"I count the months up to the {ordinal}.")
        question = f"How many days are in {month}?"
        yield _ask("calendar", question, f"{month} has {length} days.", f"I remember the length of {month}.")


def _sums() -> Iterator[Item]:
    numbers = range(LARGEST_SUMMAND + 1)
    for a in numbers:
        for b in numbers:
            yield _ask("sum", f"What is {a} + {b}?", f"{a} + {b} = {a + b}.", f"I add {a} and {b}. The sum is {a + b}.")


def _counting() -> Iterator[Item]:
    yield from (_count("count", 1, last) for last in range(3, 11))
    yield from (_count("count", first, first + 4) for first in range(2, 12))
    yield from (_count("count", first, 1) for first in range(3, 13))
    yield from (_count("long count", first, last) for first, last in LONG_COUNTS)
    for step in (2, 5, 10):
        multiples = ", ".join(str(step * factor) for factor in range(1, 31))
        thought = f"I begin with {step} and add {step} each time."
        yield _ask("long count", f"List the first thirty multiples of {step}.", multiples, thought)
    for factor in (2, 5):
        rows = "\n".join(f"{n} x {factor} = {n * factor}" for n in range(1, 13))
        yield _ask("long count", f"Write the table of {factor}.", rows, f"I multiply each number by {factor}.")


def _count(kind: str, first: int, last: int) -> Item:
    """Counting from `first` to `last`, downwards if `last` is the smaller."""
    step = 1 if first < last else -1
    way = "" if step == 1 else " down"
    numbers = ", ".join(str(n) for n in range(first, last + step, step))
    return _ask(kind, f"Count{way} from {first} to {last}.", numbers, f"I count{way} from {first} to {last}.")


def _with_system_prompt(items: list[Item]) -> Iterator[Item]:
    chosen = _spread([item for item in items if not item.is_long], SYSTEM_ITEMS)
    for n, item in enumerate(chosen):
        system = ("system", SYSTEM_PROMPTS[n % len(SYSTEM_PROMPTS)])
        yield replace(item, messages=(system, *item.messages))


def _multi_turn(items: list[Item]) -> Iterator[Item]:
    """A greeting and its answer first, then a question of another kind."""
    openers = [item for item in items if item.kind in {"greeting", "identity"}]
    questions = [item for item in items if item.kind in {"capital", "opposite", "sum", "fact"}]
    for n, question in enumerate(_spread(questions, MULTI_TURN_ITEMS)):
        opener = openers[n % len(openers)]
        yield replace(question, messages=(*opener.messages, ("assistant", opener.answer), *question.messages))


def _spread(items: list[Item], count: int) -> list[Item]:
    """`count` items at even distances."""
    return [items[n * len(items) // count] for n in range(count)]
