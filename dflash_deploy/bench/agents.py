"""Conversations of coding agents: a shared system prompt with tools, files that are read, histories that grow.

Recorded requests of five agents had 5,000 to 21,000 tokens at once, most of it tools, and tool results of some
thousand tokens. The texts are made from words of our own (agents.yaml) and depend only on the seed. How many characters
a token has is measured at the endpoint, and each answer corrects it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from importlib import resources
from random import Random
from secrets import token_hex
from typing import TYPE_CHECKING, Any

from dflash_deploy.bench.load import Load, Readings, Round, load_of, read_counters, timed_round
from dflash_deploy.bench.workload import AGENTS, Limits
from dflash_deploy.client.answers import EndpointError
from dflash_deploy.client.endpoint import Endpoint
from dflash_deploy.client.stream import TimedCompletion, streaming_body, time_completion
from dflash_deploy.errors import BadInput
from dflash_deploy.intake.parse import parse_packaged_yaml

if TYPE_CHECKING:
    import aiohttp

MOST_TURNS = 20  # turns of a conversation, if the context has room for them

# Tokens of the system prompt with its tools, and its share of a context that has no room for them.
LARGEST_SYSTEM, SYSTEM_SHARE = 20_000, 0.3

RESERVE = 128  # tokens of the context that stay free: estimates and chat templates differ by some
LEAST_NEW = 64  # tokens of the shortest tool result


@dataclass(frozen=True)
class AgentShape:
    """How long conversations become: `context` tokens after `turns` answers of at most `answer` tokens."""

    context: int
    turns: int
    answer: int

    @property
    def longest(self) -> int:
        """Tokens of the longest prompt."""
        return self.context - self.answer - RESERVE

    @property
    def system(self) -> int:
        """Tokens of the system prompt."""
        return min(LARGEST_SYSTEM, int(self.longest * SYSTEM_SHARE))


def shape_for(context: int, answer: int) -> AgentShape:
    """The conversations that fit a context. Raises BadInput if not even two turns do."""
    one = AgentShape(context, 1, answer)
    turns = min((one.longest - one.system) // (answer + 2 * LEAST_NEW), MOST_TURNS)
    if turns < 2:
        raise BadInput(
            f"2 turns of `{AGENTS}` with answers of {answer} tokens do not fit a context of {context} tokens",
            hint="use shorter answers (--max-tokens), or a longer context",
        )
    return AgentShape(context, turns, answer)


@cache
def _words() -> Mapping[str, Any]:
    text = (resources.files("dflash_deploy.bench") / "agents.yaml").read_text(encoding="utf-8")
    found: Mapping[str, Any] = parse_packaged_yaml(text)
    return found


def text_of(kind: str, seed: str, characters: int) -> str:
    """Lines of `tools` or of a `file`: the same for a seed, cut to a number of characters."""
    random, words = Random(f"{kind} {seed}"), _words()  # noqa: S311 - texts that are the same in each run
    lines, size, forms = list[str](), 0, list[str]()
    while size < characters:
        # all forms before one comes again: texts of a length have about the same tokens
        forms = forms or random.sample(words[kind], len(words[kind]))
        noun, other = random.sample(words["nouns"], 2)
        names = {"verb": random.choice(words["verbs"]), "kind": random.choice(words["kinds"]), "noun": noun}
        lines.append(forms.pop().format(**names, other=other, number=random.randrange(1, 1000)))
        size += len(lines[-1]) + 1
    return "\n".join(lines)[:characters]


def characters_per_token(endpoint: Endpoint) -> float:
    """How many characters of these texts a token has, by two short prompts. Raises EndpointError."""
    few, more = (endpoint.chat(text_of("file", "length", size), max_tokens=1).prompt_tokens for size in (400, 1200))
    if more <= few:
        raise EndpointError(f"prompts of 400 and 1,200 characters have {few} and {more} tokens: they are cut")
    return 800 / (more - few)


class AgentConversation:
    """One agent: what it sends in each turn, given what it got before. `agent` counts from 0.

    `session` begins its texts, and no seed decides it: else a run would find the last one in the prefix cache.
    """

    def __init__(self, shape: AgentShape, seed: str, agent: int, characters: float, session: str) -> None:
        self._shape, self._characters, self._seed = shape, characters, f"{seed} {agent}"
        self._random = Random(self._seed)  # noqa: S311 - the same in each run
        tools = text_of("tools", seed, int(shape.system * characters))
        self.messages: list[Mapping[str, object]] = [
            {"role": "system", "content": f"Session {session}. {_words()['system']}\n\n# Tools\n{tools}"}
        ]
        self._known, self.turn = shape.system, 0
        parts = [self._random.uniform(0.75, 1.25) for _ in range(shape.turns)]
        self._shares = [sum(parts[: turn + 1]) / sum(parts) for turn in range(shape.turns)]

    def body(self, model: str, limits: Limits) -> dict[str, object]:
        """The next request: everything so far, a tool's result and what to do with it."""
        target = self._shape.system + (self._shape.longest - self._shape.system) * self._shares[self.turn]
        new = max(int(target) - self._known, LEAST_NEW)
        read = text_of("file", f"{self._seed} {self.turn}", int(new * self._characters))
        ask = self._random.choice(_words()["requests"])
        self.messages.append({"role": "user", "content": f"Result of read_file:\n{read}\n\n{ask}"})
        return {
            "model": model,
            "messages": self.messages,
            "max_tokens": self._shape.answer,
            "temperature": limits.temperature,
            "chat_template_kwargs": {"enable_thinking": limits.thinking},
        }

    def heard(self, answer: TimedCompletion) -> None:
        """Take an answer into the history. A turn that failed is forgotten."""
        self.turn += 1
        if answer.problem:
            self.messages.pop()
            return
        self.messages.append({"role": "assistant", "content": answer.text or "Done."})
        self._known = answer.prompt_tokens + answer.completion_tokens

    async def ask(self, session: aiohttp.ClientSession, model: str, limits: Limits) -> TimedCompletion:
        """Send the next request and take its answer."""
        answer = await time_completion(session, streaming_body(self.body(model, limits)))
        self.heard(answer)
        return answer


def measure_agents(
    endpoint: Endpoint, shape: AgentShape, limits: Limits, *, agents: int, repeats: int = 1
) -> list[Load]:
    """The load of each turn. The agents begin a turn together, so that the engine's counters belong to it.

    Raises EndpointError if the length of texts cannot be measured.
    """
    return asyncio.run(_measure(endpoint, shape, limits, agents, repeats))


async def _measure(endpoint: Endpoint, shape: AgentShape, limits: Limits, agents: int, repeats: int) -> list[Load]:
    characters = characters_per_token(endpoint)
    done: list[list[tuple[Round, Readings]]] = [[] for _ in range(shape.turns)]
    async with endpoint.async_session(agents) as session:
        for repeat in range(repeats):
            name, seed = token_hex(4), f"{AGENTS} {repeat}"
            talks = [AgentConversation(shape, seed, agent, characters, name) for agent in range(agents)]
            for turn in done:
                before = read_counters(endpoint)
                one = await timed_round([talk.ask(session, endpoint.model, limits) for talk in talks])
                turn.append((one, (before, read_counters(endpoint))))
    return [load_of(agents, *zip(*turn, strict=True)) for turn in done]
