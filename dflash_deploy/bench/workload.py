"""Where prompts come from: the packaged workloads, the pair's own, data sets by name, any JSONL file."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from importlib import resources
from pathlib import Path
from typing import Annotated, Literal, TypeVar

import httpx
from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

from dflash_deploy.assets import asset
from dflash_deploy.catalog.models import ModelPair
from dflash_deploy.client.images import data_uri, plain_png
from dflash_deploy.document import Count, Documented
from dflash_deploy.errors import BadInput, FileRefused, HubUnreachable
from dflash_deploy.intake.answers import fetch_answer, new_client
from dflash_deploy.intake.files import MIB, read_argument, read_text, shown
from dflash_deploy.intake.parse import Invalid, parse_json, parse_packaged_yaml, place_of

LARGEST_FILE = 64 * MIB  # bytes of a file of prompts
EXAMPLE = '{"prompt": "Count from 1 to 40."}'

MOST_PIXELS = 4096  # width and height of a picture: its bytes are made in memory
Shade = Annotated[int, Field(ge=0, le=255)]

PACKAGED = ("code", "maths", "chat", "prose", "vision")  # the workloads of bench/workloads/, each a file
OWN = "own"  # prompts that come with a packaged pair; it answers nothing else
AGENTS = "agents"  # conversations of coding agents (`agents.py`), as many as the concurrency

# Of the tiny pair's prompts those whose replies are long enough to measure decoding (models/tiny/README.md).
OWN_KIND: Kind = "long"


@dataclass(frozen=True)
class Limits:
    """What every request of a run asks for; `max_tokens` holds where a prompt names none."""

    max_tokens: int = 256
    temperature: float = 0.0
    thinking: bool = False


@dataclass(frozen=True)
class Workload:
    """Prompts of one kind. Each of `questions` makes the body of a chat completion for a model, within limits.

    Conversations of agents have none: their prompts depend on the answers.
    """

    name: str
    source: str
    questions: tuple[Callable[[str, Limits], dict[str, object]], ...]

    def bodies(self, model: str, limits: Limits) -> list[dict[str, object]]:
        """The body of each request."""
        return [question(model, limits) for question in self.questions]


class PlainPicture(BaseModel):
    """A plain image: its sRGB value and its size in pixels."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    rgb: tuple[Shade, Shade, Shade]
    width: Annotated[int, Field(gt=0, le=MOST_PIXELS)]
    height: Annotated[int, Field(gt=0, le=MOST_PIXELS)]


class PromptLine(BaseModel):
    """One prompt of a file: a text or the turns of a conversation, with an image if `picture` is set.

    Other fields are ignored, so that files of other benchmarks work unchanged.
    """

    model_config = ConfigDict(frozen=True, extra="ignore")

    prompt: str | None = None
    messages: list[dict[str, object]] | None = None
    picture: PlainPicture | None = None
    max_tokens: Annotated[int | None, Field(gt=0)] = None

    @model_validator(mode="after")
    def _asks_something(self) -> PromptLine:
        if bool(self.prompt) == bool(self.messages):
            raise ValueError("a prompt has either `prompt` or `messages`")
        return self

    def body(self, model: str, limits: Limits) -> dict[str, object]:
        """The body of a chat completion."""
        messages = self.messages or [{"role": "user", "content": self._content()}]
        return {
            "model": model,
            "messages": messages,
            "max_tokens": self.max_tokens or limits.max_tokens,
            "temperature": limits.temperature,
            "chat_template_kwargs": {"enable_thinking": limits.thinking},
        }

    def _content(self) -> object:
        if self.picture is None:
            return self.prompt
        png = plain_png(self.picture.rgb, self.picture.width, self.picture.height)
        return [
            {"type": "image_url", "image_url": {"url": data_uri(png)}},
            {"type": "text", "text": self.prompt},
        ]


def packaged(name: str) -> Workload:
    """One of the packaged workloads."""
    file = resources.files("dflash_deploy.bench") / "workloads" / f"{name}.yaml"
    lines = [PromptLine.model_validate(entry) for entry in parse_packaged_yaml(file.read_text(encoding="utf-8"))]
    return Workload(name, f"packaged, {len(lines)} prompts", tuple(line.body for line in lines))


def own(pair: ModelPair) -> Workload:
    """The prompts that a packaged pair was trained on. Raises BadInput for a pair without such prompts."""
    bundled = pair.target.bundled
    if bundled is None:
        raise BadInput(
            f"`{OWN}` is not a workload for {pair.name}: only packaged pairs have their own prompts",
            hint=f"valid workloads: {', '.join(PACKAGED)}",
        )
    prompts = load_prompts(asset(str(Path(bundled).parent / "prompts.jsonl")), OWN_KIND)

    def body(prompt_body: Callable[[str], dict[str, object]], model: str, limits: Limits) -> dict[str, object]:
        # these know their own length, and were made for greedy decoding
        return prompt_body(model) | {"temperature": limits.temperature}

    return Workload(OWN, f"the pair's own, {len(prompts)} prompts", tuple(partial(body, one.body) for one in prompts))


def from_file(path: Path) -> Workload:
    """A JSONL file with a `prompt` or `messages` in each line. Raises BadInput with the line that is wrong."""
    try:
        written = read_argument(path, limit=LARGEST_FILE).splitlines()
    except FileRefused as problem:
        hint = "name a text file with a JSON document in each line"
        raise BadInput(f"{shown(path)} cannot be read: {problem.message}", hint=hint) from None
    numbered = [(number, text) for number, text in enumerate(written, 1) if text.strip()]
    lines = [parse_line(PromptLine, f"{path}, line {number}", text, EXAMPLE) for number, text in numbered]
    if not lines:
        raise BadInput(f"{path} holds no prompt", hint=f"a line looks like this: {EXAMPLE}")
    return Workload(path.stem, f"{path.name}, {len(lines)} prompts", tuple(line.body for line in lines))


M = TypeVar("M", bound=BaseModel)


def parse_line(kind: type[M], place: str, text: str, example: str) -> M:
    """One line of a JSONL file. Raises BadInput with its place and an example."""
    try:
        return kind.model_validate(parse_json(text))
    except ValidationError as problem:
        first = problem.errors(include_url=False, include_input=False)[0]
        where = place_of(first["loc"])
        said = f"{where}: {first['msg']}" if where else first["msg"]
    except ValueError as problem:
        said = str(problem)
    raise BadInput(f"{place}: {said}", hint=f"a line looks like this: {example}")


def choose(names: Sequence[str], file: Path | None, pair: ModelPair | None) -> list[Workload]:
    """The workloads that were asked for; without a wish what the pair can answer.

    `pair` is `None` for an endpoint of which nothing is known. Raises BadInput for an unknown name, HubUnreachable for
    a data set that does not come.
    """
    chosen = [from_file(file)] if file else []
    if not names and not file:
        names = [OWN] if pair and pair.target.bundled else ["code", "chat"]
    if "all" in names:
        names = [name for name in PACKAGED if name != "vision" or pair is None or pair.sees]
    for name in names:
        chosen.append(_named(name, pair))
    return chosen


def _named(name: str, pair: ModelPair | None) -> Workload:
    if name in PACKAGED:
        return packaged(name)
    if name == AGENTS:
        return Workload(AGENTS, "packaged, conversations of coding agents", ())
    if name == OWN and pair is not None:
        return own(pair)
    if name in DATASETS:
        lines = [PromptLine(prompt=question) for question in fetch_questions(name)]
        source = f"the first {len(lines)} of {DATASETS[name].repo}"
        return Workload(name, source, tuple(line.body for line in lines))
    known = ", ".join([*PACKAGED, AGENTS, *([OWN] if pair is not None else []), "all", *DATASETS])
    raise BadInput(
        f"`{name}` is not a workload", hint=f"valid workloads: {known}; your own prompts: --prompts FILE.jsonl"
    )


@dataclass(frozen=True)
class DescribedWorkload(Documented):
    """A set of prompts."""

    name: str
    """Name of the workload."""
    source: str
    """Where the prompts come from."""
    prompts: Count
    """Number of prompts; 0 for conversations."""


def described(workloads: Sequence[Workload]) -> list[DescribedWorkload]:
    """Name, source and size of each, for the report."""
    return [DescribedWorkload(one.name, one.source, len(one.questions)) for one in workloads]


VIEWER = "https://datasets-server.huggingface.co"

ROWS = 32  # prompts from each data set
TIMEOUT = 30.0

_STEPS = "{question}\nWork it out step by step and end with the result in \\boxed{{}}."
_CODE = "Complete this function so that its tests pass. Answer with the whole function.\n```python\n{question}\n```"


@dataclass(frozen=True)
class Dataset:
    """The place of the rows, the field with the question, and the words around it, which are not z-lab's."""

    repo: str
    config: str
    split: str
    field: str
    words: str = "{question}"

    def question(self, row: Mapping[str, object]) -> str:
        """The prompt of one row; for a conversation its first turn."""
        asked = row[self.field]
        return self.words.format(question=asked[0] if isinstance(asked, list) else asked)


DATASETS = {
    "gsm8k": Dataset("openai/gsm8k", "main", "test", "question", _STEPS),
    "math500": Dataset("HuggingFaceH4/MATH-500", "default", "test", "problem", _STEPS),
    "humaneval": Dataset("openai/openai_humaneval", "openai_humaneval", "test", "prompt", _CODE),
    "mbpp": Dataset("google-research-datasets/mbpp", "sanitized", "test", "prompt"),
    "mt-bench": Dataset("HuggingFaceH4/mt_bench_prompts", "default", "train", "prompt"),
}


def fetch_questions(name: str, *, viewer: str = VIEWER) -> list[str]:
    """The prompts of a data set. Raises HubUnreachable if they cannot be downloaded."""
    dataset = DATASETS[name]
    asked: dict[str, str | int] = {
        "dataset": dataset.repo,
        "config": dataset.config,
        "split": dataset.split,
        "offset": 0,
        "length": ROWS,
    }
    try:
        with new_client(timeout=TIMEOUT) as client:
            request = client.build_request("GET", f"{viewer}/rows", params=asked)
            answer = fetch_answer(client, request, seconds=2 * TIMEOUT, redirects=True)
        if not answer.succeeded:
            raise Invalid(f"has the status {answer.status}")
        questions = [dataset.question(entry["row"]) for entry in answer.json()["rows"]]
        if questions:
            return questions
        said = "it has no rows"
    except httpx.HTTPError as problem:
        said = str(problem) or type(problem).__name__
    except (ValueError, KeyError, TypeError, IndexError, AttributeError) as problem:
        said = f"unexpected answer: {type(problem).__name__}: {str(problem)[:200]}"
    raise HubUnreachable(
        f"{name} ({dataset.repo}) cannot be downloaded from {viewer}: {said}",
        hint="use your own file of prompts (--prompts FILE.jsonl), or a packaged workload, which needs no network",
    )


Kind = Literal["chat", "thinking", "long", "image"]


class _Line(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


class Message(_Line):
    """One turn."""

    role: Literal["system", "user", "assistant"]
    content: str


class Picture(_Line):
    """A plain image: the name of its colour, its sRGB value, its size in pixels."""

    colour: str
    rgb: tuple[int, int, int]
    width: int
    height: int


class Prompt(_Line):
    """One request. `expected` is the complete reply, word for word; `answer` is a part that it must contain."""

    id: str
    kind: Kind
    messages: tuple[Message, ...]
    enable_thinking: bool
    image: Picture | None
    answer: str
    expected: str
    max_tokens: int

    def body(self, model: str) -> dict[str, object]:
        """The body of a chat completion, decoded greedily. The image goes with the last turn, before its text."""
        messages: list[dict[str, object]] = [message.model_dump() for message in self.messages]
        if self.image is not None:
            png = plain_png(self.image.rgb, self.image.width, self.image.height)
            picture = {"type": "image_url", "image_url": {"url": data_uri(png)}}
            messages[-1]["content"] = [picture, {"type": "text", "text": self.messages[-1].content}]
        return {
            "model": model,
            "messages": messages,
            "max_tokens": self.max_tokens,
            "temperature": 0,
            "chat_template_kwargs": {"enable_thinking": self.enable_thinking},
        }


def load_prompts(path: Path, *kinds: Kind) -> list[Prompt]:
    """The prompts of a file, of the given kinds or of all. Raises pydantic.ValidationError for an invalid line."""
    prompts = map(Prompt.model_validate_json, read_text(path).splitlines())
    return [prompt for prompt in prompts if not kinds or prompt.kind in kinds]
