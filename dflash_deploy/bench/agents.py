"""Conversations of coding agents: a shared system prompt with tools, files that are read, histories that grow.

Recorded requests of five agents had 5,000 to 21,000 tokens at once, most of it tools, and tool results of some
thousand tokens. The texts are made from words of our own (agents.yaml) and depend only on the seed. How many characters
a token has is measured at the endpoint, and each answer corrects it.
"""

from __future__ import annotations

import asyncio
import itertools
import time
from collections.abc import Callable, Coroutine, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from importlib import resources
from random import Random
from secrets import token_hex
from typing import TYPE_CHECKING, Any

from dflash_deploy.bench.workload import Limits
from dflash_deploy.client.answers import EndpointError
from dflash_deploy.client.endpoint import Endpoint
from dflash_deploy.client.images import image_and_question, plain_png
from dflash_deploy.client.metrics import Metrics
from dflash_deploy.client.stream import TimedCompletion, streaming_body, time_completion
from dflash_deploy.errors import BadInput
from dflash_deploy.intake.parse import parse_packaged_yaml

if TYPE_CHECKING:
    import aiohttp

MOST_TURNS = 20
"""Turns of a conversation, if the context has room for them and their number is not set."""

LARGEST_SYSTEM, SYSTEM_SHARE = 20_000, 0.3
"""Tokens of the system prompt with its tools, and its share of a context that has no room for them."""

RESERVE = 128
"""Tokens of the context that stay free: estimates and chat templates differ by some."""

LEAST_NEW = 64
"""Tokens of the shortest tool result."""

PICTURE_TOKENS = 300
"""Room for a picture, whose tokens depend on the model."""

PICTURES_EACH = 3
"""One agent of this many sends a picture."""

THINK_S = 1.0
"""Mean seconds between an answer and the agent's next request: it runs a tool."""

WATCH_S = 0.5
"""Seconds between two readings of the queue."""


@dataclass(frozen=True)
class AgentShape:
    """How long conversations become: `context` tokens after `turns` answers of at most `answer` tokens."""

    context: int
    turns: int
    answer: int
    pictures: bool = False
    think_s: float = THINK_S

    @property
    def longest(self) -> int:
        """Tokens of the longest prompt."""
        return self.context - self.answer - RESERVE

    @property
    def system(self) -> int:
        """Tokens of the system prompt."""
        return min(LARGEST_SYSTEM, int(self.longest * SYSTEM_SHARE))


def shape_for(context: int, turns: int | None, answer: int, *, pictures: bool) -> AgentShape:
    """The conversations that fit a context; without `turns`, as many as fit. Raises BadInput if they do not fit."""
    one = AgentShape(context, 1, answer, pictures)
    fit = min((one.longest - one.system) // (answer + 2 * LEAST_NEW), MOST_TURNS if turns is None else turns)
    if fit < 2 or (turns is not None and fit < turns):
        wanted = max(turns or 2, 2)
        raise BadInput(
            f"{wanted} turns with answers of {answer} tokens do not fit a context of {context} tokens",
            hint=f"--turns {fit} fits" if fit >= 2 else "use shorter answers (--max-tokens), or a longer context",
        )
    return AgentShape(context, fit, answer, pictures)


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

    def __init__(self, shape: AgentShape, seed: str, agent: int, characters: float, session: str = "") -> None:
        self._shape, self._characters, self._seed = shape, characters, f"{seed} {agent}"
        self._random = Random(self._seed)  # noqa: S311 - the same in each run
        tools = text_of("tools", seed, int(shape.system * characters))
        self.messages: list[Mapping[str, object]] = [
            {"role": "system", "content": f"Session {session}. {_words()['system']}\n\n# Tools\n{tools}"}
        ]
        self._known, self.turn = shape.system, 0
        parts = [self._random.uniform(0.75, 1.25) for _ in range(shape.turns)]
        self._shares = [sum(parts[: turn + 1]) / sum(parts) for turn in range(shape.turns)]
        self._picture = self._random.randrange(shape.turns) if shape.pictures and agent % PICTURES_EACH == 0 else -1

    @property
    def think_s(self) -> float:
        """Seconds before the next request: the agent runs a tool."""
        return self._random.uniform(0, 2 * self._shape.think_s)

    def body(self, model: str, limits: Limits) -> dict[str, object]:
        """The next request: everything so far, a tool's result and what to do with it."""
        pictured, shape = self.turn == self._picture, self._shape
        target = shape.system + (shape.longest - shape.system) * self._shares[self.turn]
        new = max(int(target) - self._known - (PICTURE_TOKENS if pictured else 0), LEAST_NEW)
        ask = _words()["picture"] if pictured else self._random.choice(_words()["requests"])
        read = text_of("file", f"{self._seed} {self.turn}", int(new * self._characters))
        text = f"Result of read_file:\n{read}\n\n{ask}"
        colour = (self._random.randrange(256), self._random.randrange(256), self._random.randrange(256))
        content = image_and_question(plain_png(colour, 256, 256), text) if pictured else text
        self.messages.append({"role": "user", "content": content})
        return {
            "model": model,
            "messages": self.messages,
            "max_tokens": shape.answer,
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


@dataclass(frozen=True)
class TurnLoad:
    """The answers to one turn of all agents, and the counters of the engine before and after it, from all clients.

    `waiting` is the longest queue that was seen, `memory` the bytes of the engine's host memory after the turn.
    """

    turn: int
    requests: tuple[TimedCompletion, ...]
    before: Metrics | None
    after: Metrics | None
    waiting: int | None
    memory: int | None


@dataclass
class WatchedLoad:
    """Requests to an endpoint, and how the engine is watched: `memory` has the bytes of its host memory."""

    endpoint: Endpoint
    limits: Limits
    memory: Callable[[], int | None]
    characters: float = field(init=False)
    """Characters of a token of our texts."""

    def __post_init__(self) -> None:
        """Measure the length of the texts. Raises EndpointError."""
        self.characters = characters_per_token(self.endpoint)

    def read(self) -> Metrics | None:
        """The counters of the engine; `None` if it has none, or hides them."""
        try:
            found = self.endpoint.metrics()
        except (EndpointError, ValueError):
            return None
        return found if found.engine else None

    async def watched(self, turn: int, requests: Sequence[Coroutine[None, None, TimedCompletion]]) -> TurnLoad:
        """Send requests of a turn at the same time, and watch the engine meanwhile."""
        before, watched = self.read(), asyncio.create_task(self._watch())
        answers = await asyncio.gather(*requests)
        watched.cancel()
        waiting = (await asyncio.gather(watched, return_exceptions=True))[0]
        queue = waiting if isinstance(waiting, int) else None
        return TurnLoad(turn, tuple(answers), before, self.read(), queue, self.memory())

    async def _watch(self) -> int | None:
        """The longest queue until it is cancelled; `None` without counters."""
        most: int | None = None
        try:
            while (found := await asyncio.to_thread(self.read)) is not None:
                most = max(most or 0, found.waiting)
                await asyncio.sleep(WATCH_S)
        except asyncio.CancelledError:
            pass
        return most


@dataclass
class AgentLoad(WatchedLoad):
    """Agents that share an endpoint, and their number."""

    agents: int
    shape: AgentShape

    def conversations(self, seed: str) -> list[AgentConversation]:
        """A new conversation of each agent, with a system prompt that all share."""
        session = token_hex(4)
        return [AgentConversation(self.shape, seed, agent, self.characters, session) for agent in range(self.agents)]

    async def ask(self, session: aiohttp.ClientSession, one: AgentConversation) -> TimedCompletion:
        """Wait as long as a tool runs, then send the next request of a conversation."""
        await asyncio.sleep(one.think_s)
        # the body of a long history takes a while to write: not while its clock runs
        answer = await time_completion(session, streaming_body(one.body(self.endpoint.model, self.limits)))
        one.heard(answer)
        return answer

    def run(self, seed: str, show: Callable[[TurnLoad], None]) -> list[TurnLoad]:
        """All turns. The agents begin a turn together, less their think times, so that counters belong to it."""
        return asyncio.run(self._turns(self.conversations(seed), show))

    async def _turns(
        self, conversations: Sequence[AgentConversation], show: Callable[[TurnLoad], None]
    ) -> list[TurnLoad]:
        done: list[TurnLoad] = []
        async with self.endpoint.async_session(self.agents) as session:
            for turn in range(self.shape.turns):
                done.append(await self.watched(turn + 1, [self.ask(session, one) for one in conversations]))
                show(done[-1])
        return done

    def endless(self, seed: str, heard: Callable[[float, int, TimedCompletion], bool]) -> None:
        """One conversation of each agent after another, until `heard` is true.

        It gets the moment of the request (`time.perf_counter`), its turn and its answer.
        """
        asyncio.run(self._endless(seed, heard))

    async def _endless(self, seed: str, heard: Callable[[float, int, TimedCompletion], bool]) -> None:
        async def agent(number: int) -> None:
            for talk in itertools.count():
                one = AgentConversation(self.shape, f"{seed} {talk}", number, self.characters)
                while one.turn < self.shape.turns:
                    answer = await self.ask(session, one)
                    if heard(time.perf_counter() - answer.seconds, one.turn, answer):
                        return

        async with self.endpoint.async_session(self.agents) as session:
            await asyncio.gather(*map(agent, range(self.agents)))
