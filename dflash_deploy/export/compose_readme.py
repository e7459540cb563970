"""The README of the exported Compose folder: what a person runs, in which order, and what they see then."""

from __future__ import annotations

import shlex
from collections.abc import Iterator, Mapping
from typing import Any

from dflash_deploy import __version__
from dflash_deploy.door.site import published_site
from dflash_deploy.export.cluster import is_pinned
from dflash_deploy.export.compose import DOOR, SETUP, WEIGHTS, ComposeSource, LockedRole, example_request
from dflash_deploy.export.compose_setup import ROUTERS_NAME
from dflash_deploy.serve.settings import Settings

VARIABLES = {"target": Settings.model_host_path.name, "drafter": Settings.drafter_host_path.name}
"""The settings with the directories of the weights, by role."""

ANY = ("0.0.0.0", "::")  # noqa: S104 - compared, not listened on


def compose_readme(source: ComposeSource, document: Mapping[str, Any]) -> str:
    """The text of README.md."""
    plan = source.plan
    services = ", ".join(document["services"])
    return f"""\
# {plan.pair.name} with Docker Compose

Profile {plan.profile.name}, models {plan.pair.name}, engine {plan.engine.name}. Services: {services}.

Written by dflash-deploy {__version__}. The folder runs without it, with Docker and Compose{_gpus(source)}.
Run the steps in this order, in this folder.

{_keys(source)}
{_weights(source)}
{_start(source, document)}
{_check(source)}
{_later(source)}"""


def _gpus(source: ComposeSource) -> str:
    return "" if source.plan.engine.cpu else ", and the NVIDIA Container Toolkit"


def _weights(source: ComposeSource) -> str:
    known = [(role, name) for role, name in VARIABLES.items() if name in source.places]
    listed = "\n".join(f"- the {role}: `{name}`" for role, name in known)
    return f"""\
## 2. The weights

`.env` names their directories on the machine that wrote this folder. Change these lines for yours:

{listed}
{"".join(_fetched(source, role) for role, _ in known)}"""


def _fetched(source: ComposeSource, role: str) -> str:
    locked = source.locked.get(role)
    if locked is None:
        return f"\nThe lock does not have the {role}: copy its directory from the machine that wrote this folder.\n"
    place = role.upper()
    sums = f'    (cd "${place}" && sha256sum --quiet --check) < {WEIGHTS}/{role}.sha256\n' if _has_sums(locked) else ""
    return f"""
Fetch the {role} at the commit of `dflash.lock` (`hf` is in the package huggingface_hub), and verify it:

    {place}=/DIRECTORY     # that of {VARIABLES[role]}
    xargs -d '\\n' -a {WEIGHTS}/{role}.files hf download {shlex.quote(locked.repo)} --revision {locked.commit} \\
      --local-dir "${place}"
{sums}"""


def _has_sums(locked: LockedRole) -> bool:
    return any(locked.files.values())


def _keys(source: ComposeSource) -> str:
    router = "\nThe router gets two keys of its own. No client can use them.\n" if source.routed else ""
    return f"""\
## 1. The API key

    sh {SETUP}

It makes `.env` with a new key, readable only by you. `sh {SETUP} FILE` takes the key in a file instead. The containers
run as you: they read `.env`.
{router}"""


def _start(source: ComposeSource, document: Mapping[str, Any]) -> str:
    built = sorted({one["image"] for one in document["services"].values() if "build" in one})
    pulled = sorted({one["image"] for one in document["services"].values() if "build" not in one} - set(built))
    lines = [f"- `{image}` is built from `build/` if it is missing." for image in built]
    lines += [f"- `{image}` is pulled{'' if is_pinned(image) else '; it has no digest'}." for image in pulled]
    known = source.plan.profile.first_start
    minutes = max(1, round((known.seconds if known else 1200) / 60))
    router = " The router sends to an engine once it answers." if source.routed else ""
    images = "\n".join(lines)
    return f"""\
## 3. Start

    docker compose up -d
    docker compose ps

{images}

The engine is `starting`, then `healthy`. A first start may take {minutes} minute{"s" if minutes > 1 else ""}.{router}
`docker compose logs -f` shows the log.
"""


def _check(source: ComposeSource) -> str:
    settings = source.plan.settings
    if not settings.answers_requests:
        return "## 4. Check\n\nThis machine answers no requests: ask rank 0.\n"
    url, trust = base_url(source), _trust(source)
    said = example_request(source).replace("'", "'\\''")
    return f"""\
## 4. Check

Without the key, the answer is 401. With it, an answer of the model:

    curl -sS{trust} -o /dev/null -w '%{{http_code}}\\n' {url}/v1/models
    sed -n 's/^{Settings.vllm_api_key}=/Authorization: Bearer /p' .env | \\
      curl -sS{trust} -H @- -H 'Content-Type: application/json' {url}/v1/chat/completions -d \\
      '{said}'

With dflash-deploy, on any machine: `dflash-deploy test --url {url} --key-file FILE`.
"""


def _trust(source: ComposeSource) -> str:
    settings = source.plan.settings
    site = published_site(settings)
    if site is not None and settings.dflash_acme_root:
        return f" --cacert {DOOR}/acme-root.crt"
    # Caddy's own authority, made at its first start
    own = site is not None and site.is_private and not settings.dflash_acme_url
    return f" --cacert {DOOR}/data/pki/authorities/local/root.crt" if own else ""


def base_url(source: ComposeSource) -> str:
    """Where the endpoint answers, as seen from the machine that runs the folder."""
    settings = source.plan.settings
    if (site := published_site(settings)) is not None:
        return site.url
    host = "127.0.0.1" if settings.dflash_bind in ANY else settings.dflash_bind
    return f"http://{f'[{host}]' if ':' in host else host}:{settings.dflash_port}"


def _later(source: ComposeSource) -> str:
    return "## 5. Later\n\n" + "".join(f"- {line}\n" for line in _notes(source))


def _notes(source: ComposeSource) -> Iterator[str]:
    yield "`docker compose down` stops all; weights and compiled kernels stay."
    yield (
        "This folder's name is the name of its Compose project: run `docker compose down` before you rename it. A copy "
        "needs another name, and then is a project of its own; to run beside this one it needs other ports too."
    )
    yield (
        f"A further key is an entry NAME:KEY in {Settings.dflash_api_keys} of `.env`, with commas between entries. "
        "After any change of `.env`: `docker compose up -d --force-recreate`, which starts every engine again."
    )
    if source.routed:
        yield f"Leave the entry `{ROUTERS_NAME}` there: with it the router reads the engines' load."
        yield (
            f"Prometheus reads engine N at port {source.plan.settings.dflash_port}, path `/replicas/N/metrics`, with a "
            "key NAME:KEY:metrics. The router's own metrics are not published: only dflash-deploy writes their keys."
        )
        yield "Docker restarts an engine that ends; the router leaves it out meanwhile."
    if source.routed and source.plan.engine.cpu:
        yield "The processor cores of the engines are numbered as on the machine that wrote this folder."
    if source.plan.settings.several_machines:
        yield "Each machine has a folder of its own. Start all of them; rank 0 answers requests."
    yield "Own additions belong into `compose.override.yaml`, which Compose reads too and no export writes."
    yield (
        "In the deployment, `dflash-deploy export compose --check` says what differs, setting by setting, and "
        "`dflash-deploy export compose` writes the folder again."
    )
