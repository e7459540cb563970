"""The services of `compose.yaml`: one engine, or several of them behind a router in a network of their own."""

from __future__ import annotations

import copy
import hashlib
import re
from collections.abc import Iterator, Mapping
from typing import Any

import yaml

from dflash_deploy import __version__
from dflash_deploy.assets import build_digest
from dflash_deploy.deployment.directory import Deployment
from dflash_deploy.deployment.door_files import door_files
from dflash_deploy.deployment.service_names import DOOR, ROUTER, SERVICE, engine_service
from dflash_deploy.errors import FileRefused
from dflash_deploy.host import threads_here
from dflash_deploy.host.gpu import VISIBLE
from dflash_deploy.intake import Invalid, parse_yaml, read_text
from dflash_deploy.plan import Plan
from dflash_deploy.plan.replicas import IN_ORDER, gpus_of_member, member_of
from dflash_deploy.serve.gateway.health import MEMORY_FILE
from dflash_deploy.serve.settings import Settings

ENGINES_NETWORK = "engines"
"""The network of several engines, in which only their router and their door are too."""

FINGERPRINT = "dev.dflash.settings-hash"
"""The label with a hash of everything that a container is created with."""

DOOR_LABEL, ROUTER_LABEL, REPLICA_LABEL = "dev.dflash.door", "dev.dflash.router-keys", "dev.dflash.replica"
"""The labels with a hash of the door's files and of the router's keys, and the number of one of several engines."""

VARIABLE = re.compile(r"\$\{(?P<name>\w+)(?::(?:-(?P<default>[^}]*)|\?[^}]*))?\}")
"""A variable as the fragments of compose/ have them."""

_ANY_VARIABLE = re.compile(r"\$\{?(?P<name>\w+)")
"""A variable in any notation of Compose: a user writes the override."""


def member_plans(plan: Plan) -> tuple[Plan, ...]:
    """The plan of each of several engines on this machine, in order; empty if there is only one."""
    numbers = range(1, plan.settings.replicas + 1) if plan.settings.several_engines else ()
    return tuple(member_plan(plan, number) for number in numbers)


def member_plan(plan: Plan, number: int) -> Plan:
    """The plan of one of several engines on this machine, counted from 1."""
    return member_of(plan, number, () if plan.profile.match.gpus else threads_here())


def shared_out(document: Mapping[str, Any], plan: Plan) -> dict[str, Any]:
    """Return the Compose file of a single engine as that of several: a service for each, and only the door published.

    `document` has the services of one engine, of the router and of the door.
    """
    services = dict(document["services"])
    single, router, door = (services.pop(name) for name in (SERVICE, ROUTER, DOOR))
    engines = {
        engine_service(number): _engine(single, plan, member, number)
        for number, member in enumerate(member_plans(plan), start=1)
    }
    # the router's service builds the image of both
    del door["build"]
    return {**document, "services": {**engines, ROUTER: router, DOOR: door, **services}}


def with_fronts(document: dict[str, Any], deployment: Deployment, settings: Settings) -> dict[str, Any]:
    """Give the door and the router their image, the engine's user, and a label that changes with the door's files.

    `document` has the services of one engine, beside those that it has of the two.
    """
    single = document["services"][SERVICE]
    for name in {ROUTER, DOOR} & document["services"].keys():
        service = document["services"][name]
        service["build"]["context"] = single["build"]["context"]
        service["image"] = f"dflash-deploy/router:{__version__}-{build_digest(ROUTER)}"
        service["user"] = single["user"]
        service["labels"] = {"dev.dflash.version": __version__}
        if name == DOOR:
            # Caddy reads its files only when it starts: a changed label creates the container again
            text = "".join(door_files(deployment, settings).values())
            service["labels"][DOOR_LABEL] = hashlib.sha256(text.encode()).hexdigest()
    return document


def _engine(single: Mapping[str, Any], plan: Plan, member: Plan, number: int) -> dict[str, Any]:
    """One of several engines: with its share of the machine, in the private network, and not published."""
    service = copy.deepcopy(dict(single))
    service.pop("ports", None)
    service["networks"] = [ENGINES_NETWORK]
    environment = service["environment"]
    environment[MEMORY_FILE] = f"/cache/dflash-health-{number}.json"
    service["labels"] = {**service["labels"], REPLICA_LABEL: str(number)}
    if gpus := gpus_of_member(plan, number):
        environment["NVIDIA_VISIBLE_DEVICES"] = ",".join(gpus)
        for name in (VISIBLE, IN_ORDER):
            # the container has only these GPUs, and counts them from 0
            environment.pop(name, None)
        for device in service["deploy"]["resources"]["reservations"]["devices"]:
            device.pop("count", None)
            device["device_ids"] = list(gpus)
    if cores := member.values.get(Settings.dflash_cores.name):
        environment[Settings.dflash_cores.name] = service["cpuset"] = cores
    return service


def with_fingerprints(document: dict[str, Any], deployment: Deployment) -> dict[str, Any]:
    """Label each of several engines with a hash of its service, of the user's override, and of the values of both.

    Raises FileRefused if the override cannot be read.
    """
    # Compose merges it into the services; a directory of this name is not passed to Compose either
    override = read_text(deployment.override_file) if deployment.override_file.is_file() else ""
    for name, service in document["services"].items():
        if name.startswith(f"{SERVICE}-"):
            service["labels"][FINGERPRINT] = _fingerprint(service, override, deployment.values)
    return document


def rendered_fingerprint(deployment: Deployment, service: str) -> str:
    """The hash of a service in `compose.yaml`; empty if the file is missing or damaged, or has no such service."""
    try:
        document = parse_yaml(read_text(deployment.compose_file))
        return str(document["services"][service]["labels"][FINGERPRINT])
    except (FileRefused, Invalid, KeyError, TypeError):
        return ""


def _fingerprint(service: Mapping[str, Any], override: str, values: Mapping[str, str]) -> str:
    text = yaml.safe_dump(dict(service)) + override
    used = ((name, values.get(name, "")) for name in sorted(set(_names(text))))
    return hashlib.sha256(repr((text, *used)).encode()).hexdigest()[:12]


def _names(text: str) -> Iterator[str]:
    return (found["name"] for found in _ANY_VARIABLE.finditer(text))
