"""Options and arguments that several commands share, and how their values are read.

The options include what `bench`, `tune` and `test` measure, how, and beside what, and the name, scope and limits of an
API key. Shells complete names of the catalog, checks, clients and deployments; an error completes nothing. Values are
numbers with commas between, durations such as `30m`, `2h` or `1d`, and sizes with their units.
"""

from __future__ import annotations

import functools
import inspect
import re
import sys
from collections.abc import Callable, Iterable, Iterator
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from dflash_deploy.errors import BadInput, DeployError
from dflash_deploy.serve.api_keys import LARGEST_LIMIT
from dflash_deploy.serve.field import tokens
from dflash_deploy.serve.refusal import Refused

if TYPE_CHECKING:
    from dflash_deploy.cli.shown import Report
    from dflash_deploy.host.machine import HostFacts


# --- what is measured
Workload = Annotated[
    str,
    typer.Option(
        "--workload",
        "-w",
        help="code, maths, chat, prose, vision, own, all; gsm8k, math500, humaneval, mbpp, mt-bench. With commas.",
    ),
]
Mixture = Annotated[str, typer.Option("--workload", "-w", help="As for `bench`; several are measured as one mixture.")]
Prompts = Annotated[
    Path | None, typer.Option(help="A JSONL file with `prompt` or `messages` in each line.", dir_okay=False)
]
Concurrency = Annotated[
    str, typer.Option(help="Concurrency: requests at the same time, one measurement for each number.")
]

# --- how
Requests = Annotated[
    int | None,
    typer.Option(min=1, help="Requests per repeat; else each prompt once, at least two times the concurrency."),
]
Repeats = Annotated[int, typer.Option(min=1, help="Repeats of each measurement.")]
RepeatsForMedian = Annotated[int, typer.Option(min=1, help="Repeats of each measurement; the median counts.")]
Context = Annotated[
    int, typer.Option(min=0, help="Tokens of a conversation before each prompt; agents grow to them. [default: 0]")
]
MaxTokens = Annotated[int, typer.Option(min=1, help="Longest answer in tokens, unless the prompt has its own length.")]
Temperature = Annotated[float, typer.Option(min=0, max=2, help="Sampling temperature; 0 is greedy.")]
Thinking = Annotated[bool, typer.Option("--thinking", help="Let the model think, if its template asks.")]

# --- beside what
Baseline = Annotated[
    bool, typer.Option("--baseline", help="Also measure without speculative decoding (restarts the engine twice).")
]
BaselineUrl = Annotated[
    str | None, typer.Option(help="Also measure this endpoint: the same key and model without speculative decoding.")
]
MtpHead = Annotated[
    int | None,
    typer.Option(min=1, help="Also measure the target's MTP head with N draft tokens (one more restart)."),
]
MinSpeedup = Annotated[float | None, typer.Option(min=0, help="Fail with exit code 7 if a speed-up is below this.")]
SameAnswers = Annotated[
    bool,
    typer.Option(
        "--baseline",
        help="Also compare answers without speculative decoding (restarts the engine twice).",
    ),
]
SameAnswersUrl = Annotated[
    str | None,
    typer.Option(help="Compare answers with this endpoint: the same target and key, no speculative decoding."),
]


KeyName = Annotated[str, typer.Argument(help="Key name: 1-15 characters of a-z, 0-9, - and _.", show_default=False)]

KeyScope = Annotated[
    Literal["infer", "metrics", "all"],
    typer.Option(help="infer: generate; metrics: only GET /metrics; all: every route."),
]

InFlight = Annotated[
    int | None, typer.Option(min=1, max=LARGEST_LIMIT, help="Most requests at the same time; more get 429.")
]

TokensPerMinute = Annotated[
    int | None, typer.Option(min=1, max=LARGEST_LIMIT, help="Most tokens read and generated within 60 s; then 429.")
]


MOST_ENTRIES = 1000  # entries of a directory that are examined


def _completing(names: Callable[[str], Iterable[str]]) -> Callable[[str], list[str]]:
    """Make a completion of a function: the names that begin with what is typed."""

    @functools.wraps(names)
    def complete(incomplete: str) -> list[str]:
        try:
            return [name for name in names(incomplete) if name.startswith(incomplete)]
        except (DeployError, OSError, ValueError):
            return []

    return complete


@_completing
def profiles(incomplete: str) -> Iterable[str]:
    """Return the names of profiles."""
    from dflash_deploy.catalog.load import load_catalog

    return load_catalog().profiles


@_completing
def models(incomplete: str) -> Iterable[str]:
    """Return the names of models."""
    from dflash_deploy.catalog.load import load_catalog

    return load_catalog().pairs


@_completing
def engines(incomplete: str) -> Iterable[str]:
    """Return the names of engines and of their releases."""
    from dflash_deploy.catalog.load import load_catalog
    from dflash_deploy.serve.engines import ENGINES

    return {**ENGINES, **load_catalog().engines}


@_completing
def recipes(incomplete: str) -> Iterable[str]:
    """Return the names of recipes."""
    from dflash_deploy.catalog.load import load_catalog

    return dict.fromkeys(one.name for profile in load_catalog().profiles.values() for one in profile.recipes)


@_completing
def checks(incomplete: str) -> Iterable[str]:
    """Return the names of checks, after those that are already written with commas between."""
    from dflash_deploy.checks.run import CHECKS

    written, comma, _ = incomplete.rpartition(",")
    taken = written.split(",")
    return (f"{written}{comma}{name}" for name in CHECKS if name not in taken)


Only = Annotated[
    str, typer.Option("--only", help="Checks to run, by name, with commas between.", autocompletion=checks)
]


@_completing
def clients(incomplete: str) -> Iterable[str]:
    """Return the names of clients."""
    from dflash_deploy.connect import clients as known

    return known()


@_completing
def deployments(incomplete: str) -> Iterator[str]:
    """Yield directories: a deployment by its name, any other one with a slash, so that its entries come next."""
    from dflash_deploy.deployment.directory import Deployment

    above, slash, name = incomplete.rpartition("/")
    for place in islice(Path(f"{above}{slash}" or ".").expanduser().iterdir(), MOST_ENTRIES):
        if place.is_dir() and (name.startswith(".") or not place.name.startswith(".")):
            yield f"{above}{slash}{place.name}{'' if Deployment(place).exists() else '/'}"


Url = Annotated[str | None, typer.Option(help="Another endpoint, as http://host:port; no deployment is needed.")]
Served = Annotated[str, typer.Option(help="The served name to ask at --url; else the first one.")]
KeyFile = Annotated[
    Path | None, typer.Option("--key-file", help="A file that holds the API key of --url and nothing else.")
]
Patience = Annotated[float, typer.Option(min=1, help="Seconds without progress after which the start fails.")]

Profile = Annotated[str | None, typer.Option(help="Hardware profile; detected if left out.", autocompletion=profiles)]
Model = Annotated[
    str | None,
    typer.Option(
        "--model",
        "--pair",
        help="Name of the catalog, OWNER/REPO, DIRECTORY or FILE.gguf; else the profile's model.",
        autocompletion=models,
    ),
]
Engine = Annotated[
    str | None, typer.Option(help="vllm, sglang, llamacpp, or a release of the catalog.", autocompletion=engines)
]
Recipe = Annotated[
    str | None,
    typer.Option(help="Models, engine and settings of a published recipe of the profile.", autocompletion=recipes),
]
Goal = Annotated[
    Literal["latency", "throughput", "context", "coding", "vision"] | None,
    typer.Option(help="Choose model, sizes and copies for this goal."),
]
LONGEST_SEQUENCE = 10_000_000  # tokens


def _tokens(written: str) -> int:
    try:
        found = tokens("--max-model-len", written)
    except Refused as problem:
        raise typer.BadParameter(f"`{written}` is not a whole number, such as 65536 or 64K") from problem
    if found > LONGEST_SEQUENCE:
        raise typer.BadParameter(f"`{written}` is more than {LONGEST_SEQUENCE}")
    return found


Length = Annotated[
    int | None,
    typer.Option(
        parser=_tokens,
        metavar="TOKENS",
        help="Longest sequence, prompt and answer together; 64K is 65536, 64k 64000.",
    ),
]
Streams = Annotated[int | None, typer.Option(min=1, max=100_000, help="Requests to answer at the same time.")]
NoDrafter = Annotated[bool, typer.Option("--no-drafter", help="Disable speculative decoding, to compare with.")]
Drafter = Annotated[
    str | None,
    typer.Option(help="Draft model of --model: OWNER/REPO, DIRECTORY, FILE.gguf, mtp (its MTP head), or off."),
]
Runtime = Annotated[
    Literal["compose", "native"] | None, typer.Option(help="compose: containers; native: a process on this machine.")
]
Rank = Annotated[
    int | None, typer.Option(min=0, help="Rank of this machine of several, from 0; rank 0 answers requests.")
]
Master = Annotated[str | None, typer.Option(help="Address of rank 0 on the link between the machines.")]


def _choice(
    profile: Profile = None,
    model: Model = None,
    engine: Engine = None,
    recipe: Recipe = None,
    goal: Goal = None,
    max_model_len: Length = None,
    concurrency: Streams = None,
    drafter: Drafter = None,
    no_drafter: NoDrafter = False,
    runtime: Runtime = None,
    node_rank: Rank = None,
    master_addr: Master = None,
) -> None:
    """Declare the options that decide a plan, for `with_choice` to take them over."""


def with_choice(function: Callable[..., Report]) -> Callable[..., Report]:
    """Give a command the options that decide a plan; its function gets them as one `choice`."""
    shared = inspect.signature(_choice, eval_str=True).parameters
    # the plan's own class is not imported for `--help`
    signature = inspect.signature(function, eval_str=True, globals={**function.__globals__, "Choice": object})

    @functools.wraps(function)
    def run(**given: Any) -> Report:
        from dflash_deploy.plan.result import Choice

        asked = {name: given.pop(name) for name in shared}
        choice = Choice(drafter_of=asked.pop("drafter"), drafter=not asked.pop("no_drafter"), **asked)
        return function(choice=choice, **given)

    own = (one for one in signature.parameters.values() if one.name != "choice")
    vars(run)["__signature__"] = (joined := signature.replace(parameters=[*shared.values(), *own]))
    run.__annotations__ = {name: one.annotation for name, one in joined.parameters.items()}
    return run


LARGEST_PORT = 65535


def is_asked_on_terminal() -> bool:
    """Whether a person can see a question and answer it."""
    return sys.stdin is not None and sys.stdin.isatty() and sys.stderr.isatty()


MOST_CONCURRENT = 4096

GIB = 2**30  # bytes of memory
GB = 1e9  # bytes of a file, as disks and downloads count them


def size_of(weights: int) -> str:
    """The size of weights: in MB below 0.1 GB, such as the tiny pair."""
    return f"{weights / GB:.1f} GB" if weights >= GB / 10 else f"{weights / 1e6:.0f} MB"


def sizes_of(target: int, drafter: int) -> str:
    """The sizes of target and drafter; the unit once if both have the same."""
    first, second = size_of(target), size_of(drafter)
    unit = f" {second.rpartition(' ')[2]}"
    return f"{first.removesuffix(unit)} + {second}"


def machine_line(facts: HostFacts) -> str:
    """GPUs, or what a machine without one has."""
    if facts.gpus:
        cards = ", ".join(f"{one.name}{f' ({one.memory / GIB:.0f} GiB)' if one.memory else ''}" for one in facts.gpus)
        return f"{cards}, driver {facts.gpus[0].driver}"
    memory = f", {facts.memory_total / GIB:.0f} GiB of memory" if facts.memory_total else ""
    return f"{'a GPU that cannot be read' if facts.gpu_problem else 'no GPU'}, {facts.cpus} CPU cores{memory}"


def some(number: float) -> str:
    """A number of sequences, with a decimal only if it matters."""
    return f"{number:.1f}" if number < 100 else f"{number:,.0f}"


def concurrency_of(written: str) -> tuple[int, ...]:
    """The numbers of requests at the same time, each once, in rising order. Raises BadInput."""
    try:
        numbers = {int(part) for part in written.split(",")}
    except ValueError:
        numbers = set()
    if not numbers or not all(1 <= number <= MOST_CONCURRENT for number in numbers):
        raise BadInput(
            f"`--concurrency {written}` is not valid (numbers from 1 to {MOST_CONCURRENT})",
            hint="such as --concurrency 1,2,4,8",
        )
    return tuple(sorted(numbers))


def draft_tokens_of(written: str) -> tuple[int, ...]:
    """The numbers of draft tokens; empty if none are given. Raises BadInput."""
    try:
        return tuple(int(part) for part in written.split(",")) if written else ()
    except ValueError:
        raise BadInput(
            f"`--draft-tokens {written}` is not valid (numbers with commas between)",
            hint="such as --draft-tokens 1,3,7",
        ) from None


DAY = 86_400  # seconds
_SECONDS = {"s": 1, "m": 60, "h": 3600, "d": DAY}
_DURATION = re.compile(r"([0-9]{1,6})([smhd])")


def seconds_of(option: str, written: str, *, most: int) -> int:
    """Seconds of a duration from 1 s to `most` seconds, a number of days. Raises BadInput."""
    match = _DURATION.fullmatch(written.strip())
    seconds = int(match[1]) * _SECONDS[match[2]] if match else 0
    if not 1 <= seconds <= most:
        raise BadInput(
            f"`{option} {written[:40]}` is not valid (a duration from 1s to {most // DAY}d)",
            hint=f"such as {option} 30m, {option} 2h or {option} 1d",
        )
    return seconds
