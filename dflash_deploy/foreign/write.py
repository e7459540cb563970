"""A plan as others write it: `docker run`, a Compose file, a recipe of sparkrun, or the engine's own command.

The API key is a variable of the reader's shell. What exists only in this project's image is left out.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import PurePosixPath
from textwrap import indent

import yaml

from dflash_deploy.catalog.settings import passed_on
from dflash_deploy.errors import BadInput
from dflash_deploy.foreign.rules import SPARKRUN, EngineRules, engine_rules
from dflash_deploy.intake.parse import parse_packaged_yaml
from dflash_deploy.plan.command import CONTAINER_DRAFTER, CONTAINER_TARGET, drafter_directory, engine_command
from dflash_deploy.plan.result import Plan
from dflash_deploy.serve.secrets import SECRET_NAMES
from dflash_deploy.serve.settings import Settings

CONTAINED = ("docker-run", "compose", "sparkrun")
"""Forms that need an image; the others are engines' names."""

_TEMPLATED = {setting.name: name for name, setting in SPARKRUN.items()}


def written_as(plan: Plan, form: str) -> str:
    """The plan in a form. Raises BadInput if the form is unknown, or does not exist for the plan's engine."""
    engine = plan.engine.engine
    if form not in (*CONTAINED, engine):
        raise BadInput(
            f"`{form}` is not a form of this plan ({', '.join((*CONTAINED, engine))})",
            hint=f"the plan is for {plan.engine.title}: another engine needs --engine",
        )
    rules = engine_rules()[engine]
    if form in CONTAINED and not rules.public_image:
        raise BadInput(
            f"no public image has {plan.engine.title}", hint=f"--as {engine} prints the command of its program"
        )
    if form == "docker-run":
        return _docker_run(plan, rules)
    if form == "compose":
        return _compose_file(plan, rules)
    return _sparkrun(plan, rules) if form == "sparkrun" else _command(plan, rules)


def _arguments(plan: Plan, rules: EngineRules, *, listens: bool) -> list[str]:
    """The engine's command with its program, without what only our image has."""
    words, left = engine_command(plan), list[str]()
    skip = False
    for word in words:
        if not skip and word not in rules.dropped:
            left.append(word)
        skip = word in rules.dropped
    return [*left, *(rules.listens if listens else ())]


def _from_hub(plan: Plan, rules: EngineRules) -> list[str]:
    """The command with repositories in place of directories, as others can run it."""
    own = replace(plan, runtime="native")
    words = _arguments(own, rules, listens=False)
    places = ((drafter_directory(plan.settings), plan.pair.drafter), (plan.settings.model_host_path, plan.pair.target))
    for path, weights in places:
        name = PurePosixPath(path).name
        if weights.repo and not weights.file and name.startswith(weights.repo.rsplit("/", 1)[-1]):
            words = [word.replace(path, weights.repo) for word in words]
    bind = [] if "--host" in words else ["--host", plan.settings.dflash_bind, "--port", str(plan.settings.dflash_port)]
    return [*words, *bind]


def _variables(plan: Plan) -> Mapping[str, str]:
    """Variables that the engine reads, and what turns speculative decoding off for `init --from`."""
    found = {n: v for n, v in plan.values.items() if v and passed_on(n) and n not in SECRET_NAMES}
    return found if plan.speculating else {**found, Settings.dflash_drafter.name: "off"}


def _words(words: list[str], rules: EngineRules) -> Iterator[str]:
    """Words for a shell, an option and its values on one line."""
    line: list[str] = []
    for word in words:
        if word.startswith("-") and line:
            yield shlex.join(line)
            line = []
        line.append(word)
    yield shlex.join(line)
    if rules.key_argument:
        yield f'{rules.key_argument} "${Settings.vllm_api_key.name}"'


def _command(plan: Plan, rules: EngineRules) -> str:
    variables = [f"export {name}={shlex.quote(value)}" for name, value in _variables(plan).items()]
    key = rules.key_variable or Settings.vllm_api_key.name
    head = [f"# {plan.pair.title}, {plan.engine_title}; the key is in {key}", *variables]
    return "\n".join((*head, " \\\n  ".join(_words(_from_hub(plan, rules), rules))))


def _image(plan: Plan) -> str:
    return plan.values[Settings.dflash_base_image.name]


def _started(plan: Plan, rules: EngineRules) -> tuple[str, list[str]]:
    """The entry point, empty for the image's own, and the words after the image."""
    words = _arguments(plan, rules, listens=True)
    program = len(plan.engine.kind.program)
    if not rules.serves:
        return "", words
    if plan.engine.entry_point == "arguments":
        return "", words[program + (words[program : program + 1] == ["serve"]) :]
    return words[0], words[1:]


def _ports(plan: Plan, words: list[str]) -> str:
    inner = words[len(words) - 1 - words[::-1].index("--port") + 1]
    bind = plan.settings.dflash_bind
    return f"{f'[{bind}]' if ':' in bind else bind}:{plan.settings.dflash_port}:{inner}"


def _mounts(plan: Plan) -> list[str]:
    mounts = [f"{plan.settings.model_host_path}:{CONTAINER_TARGET}:ro"]
    return [*mounts, f"{drafter_directory(plan.settings)}:{CONTAINER_DRAFTER}:ro"] if plan.drafting else mounts


def _docker_run(plan: Plan, rules: EngineRules) -> str:
    entry, words = _started(plan, rules)
    options = [] if plan.engine.cpu else ["--gpus all"]
    if plan.settings.dflash_shm_size:
        options.append(f"--shm-size {plan.settings.dflash_shm_size}")
    several = plan.settings.several_machines
    options.append("--network host" if several else f"--publish {_ports(plan, words)}")
    options += [f"--volume {shlex.quote(mount)}" for mount in _mounts(plan)]
    options += [f"--env {shlex.quote(f'{name}={value}')}" for name, value in _variables(plan).items()]
    options += [f"--env {rules.key_variable}"] if rules.key_variable else []
    options += [f"--entrypoint {entry}"] if entry else []
    return " \\\n  ".join(("docker run", *options, shlex.quote(_image(plan)), *_words(words, rules)))


def _compose_file(plan: Plan, rules: EngineRules) -> str:
    entry, words = _started(plan, rules)
    key = [rules.key_argument, "${" + Settings.vllm_api_key.name + "}"] if rules.key_argument else []
    variables = [f"{name}={value}".replace("$", "$$") for name, value in _variables(plan).items()]
    gpus = {"resources": {"reservations": {"devices": [{"driver": "nvidia", "count": "all", "capabilities": ["gpu"]}]}}}
    service: dict[str, object] = {
        "image": _image(plan),
        "entrypoint": [entry] if entry else None,
        "command": [*(word.replace("$", "$$") for word in words), *key],
        "ports": None if plan.settings.several_machines else [_ports(plan, words)],
        "network_mode": "host" if plan.settings.several_machines else None,
        "volumes": _mounts(plan),
        "environment": [*variables, *([rules.key_variable] if rules.key_variable else [])],
        "shm_size": plan.settings.dflash_shm_size,
        "deploy": None if plan.engine.cpu else gpus,
    }
    document = {"services": {"engine": {name: value for name, value in service.items() if value}}}
    return str(yaml.safe_dump(document, sort_keys=False, width=120)).rstrip()


def _sparkrun(plan: Plan, rules: EngineRules) -> str:
    words = [word.replace("{", "{{").replace("}", "}}") for word in _from_hub(plan, rules)]
    defaults: dict[str, object] = {}
    for at, word in enumerate(words[:-1]):
        reserved = plan.engine.kind.reserved_flags.get(word)
        fields = [_TEMPLATED.get(one.name, "") for one in reserved.fields] if reserved else []
        if len(fields) == 1 and fields[0]:
            defaults[fields[0]] = parse_packaged_yaml(words[at + 1])
            words[at + 1] = f"{{{fields[0]}}}"
    lines = [re.sub(r"'(\{\w+\})'", r"\1", line) for line in _words(words, rules)]
    document = {
        "recipe_version": "1",
        "name": f"{plan.pair.name}-{plan.profile.name}",
        "description": f"{plan.pair.title} on {plan.profile.title}",
        "model": plan.pair.target.repo or plan.settings.model_host_path,
        "runtime": rules.runtime,
        "container": _image(plan),
        "defaults": defaults,
        "env": dict(_variables(plan)),
    }
    command = indent(" \\\n  ".join(lines), "  ")
    return f"{yaml.safe_dump(document, sort_keys=False, width=120)}command: |\n{command}"
