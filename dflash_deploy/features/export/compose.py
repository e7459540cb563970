"""The folder of `export compose`: a Compose file, all that it mounts, `setup.sh`, and a README.

The Compose file has no variables but paths and user. `setup.sh` makes `.env` with new keys; no key is in an argument or
a variable that other processes can read. The README has what the user runs, in which order, and what they see then.
"""

from __future__ import annotations

import copy
import json
import re
import shlex
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from dflash_deploy import __version__
from dflash_deploy.door.site import published_site
from dflash_deploy.errors import BadInput
from dflash_deploy.features.export.folder import filled, of_plan, yaml_of
from dflash_deploy.features.export.manifests import is_pinned
from dflash_deploy.plan.result import Plan
from dflash_deploy.serve.gateway.keys import KEYS_FILE
from dflash_deploy.serve.router.files import KEYS, MANIFEST, RoutedEngine, manifest_of
from dflash_deploy.serve.settings import Settings

COMPOSE, TEMPLATE, SETUP, LOCK, README = "compose.yaml", "env.template", "setup.sh", "dflash.lock", "README.md"
IGNORED = ".gitignore"
DOOR, ROUTER, BUILD, WEIGHTS = "door", "router", "build", "weights"
"""Folders: what the door and the router mount, what the images are built from, and the lists of the weights."""

USER = "DFLASH_USER"
"""The variable with the user of the containers."""

KEPT = (Settings.model_host_path.name, Settings.drafter_host_path.name)
"""The settings that stay variables: where the weights are on the machine that runs the folder."""

HEADER = """\
# Written by dflash-deploy {version} export compose, from .env and dflash.lock. README.md has the steps.
# Put changes into compose.override.yaml: an edited file is not written again.
"""

_STATE = "./.dflash/"
_ONLY_HERE = ("dev.dflash.secrets-hash", "dev.dflash.router-keys")
"""Labels with a hash of keys that only the deployment has."""


def project_of(folder: Path) -> str:
    """The name that Compose gives the project of a folder. Raises BadInput if none is left."""
    name = re.sub(r"[^a-z0-9_-]", "", folder.absolute().name.lower()).lstrip("_-")
    if not name:
        raise BadInput(
            f"`{folder}` gives no name for a Compose project",
            hint="name the folder with a letter or a digit: --out DIR",
        )
    return name


@dataclass(frozen=True)
class LockedRole:
    """What the lock has for the target or the drafter: its files, and the SHA-256 of those that have one."""

    repo: str
    commit: str
    files: Mapping[str, str | None]


@dataclass(frozen=True)
class ComposeSource:
    """What the folder is made from.

    `document` is the deployment's Compose file with resolved settings. `door` are the files that the door mounts,
    `build` those that images are built from. `places` are the directories of the weights on this machine as `.env`
    writes them, by setting; `lock` is the text of the lock, `locked` what it has by role.
    """

    plan: Plan
    document: Mapping[str, Any]
    door: Mapping[str, str]
    build: Mapping[str, str]
    places: Mapping[str, str]
    lock: str = ""
    locked: Mapping[str, LockedRole] = field(default_factory=dict)

    @property
    def routed(self) -> bool:
        """Whether a router is in front of the engines."""
        return self.plan.settings.several_engines


def compose_document(source: ComposeSource) -> dict[str, Any]:
    """The Compose file of the folder: nothing in it is a path or a user of this machine.

    It has no name, so that a copy of the folder is another project: `down` there stops no container of this one.
    """
    document = copy.deepcopy({key: value for key, value in source.document.items() if key != "name"})
    for service in document["services"].values():
        service["user"] = f"${{{USER}:?run `sh {SETUP}` first}}"
        service["labels"] = {key: value for key, value in service["labels"].items() if key not in _ONLY_HERE}
        environment = _portable(service.get("environment", {}))
        # further keys are in .env: without the tool, no one writes the file
        service["environment"] = {key: text for key, text in environment.items() if text and key != KEYS_FILE}
        service["volumes"] = [_mounted(one) for one in service.get("volumes", ()) if not _has_keys(one)]
        if "build" in service:
            service["build"]["context"] = f"./{BUILD}"
    document["secrets"]["dotenv"]["file"] = "./.env"
    return document


def _portable(environment: Mapping[str, str]) -> dict[str, str]:
    """The environment of a container without a path of this machine: a drafter may be named by its directory."""
    which, where = Settings.dflash_drafter.name, environment.get(Settings.drafter_path.name, "")
    named = environment.get(which, "")
    return {**environment, which: where} if where and named.startswith(("/", "~", ".")) else dict(environment)


def _has_keys(volume: Mapping[str, Any]) -> bool:
    return str(volume["source"]) == f"{_STATE}keys"


def _mounted(volume: Mapping[str, Any]) -> dict[str, Any]:
    """A volume of the deployment, with its place in the folder."""
    place = str(volume["source"])
    return {**volume, "source": f"./{place.removeprefix(_STATE)}"} if place.startswith(_STATE) else dict(volume)


def engine_names(source: ComposeSource) -> tuple[str, ...]:
    """The services that are engines."""
    return tuple(name for name in source.document["services"] if name not in {DOOR, ROUTER})


def router_list(source: ComposeSource) -> str:
    """The engines of the router. It sends to each as soon as it answers."""
    models = source.plan.settings.served_model_name
    numbered = enumerate(engine_names(source), start=1)
    return manifest_of(RoutedEngine(str(number), f"http://{name}:8000", models) for number, name in numbered)


def env_template(source: ComposeSource) -> str:
    """The `.env` of the folder with empty keys."""
    places = "".join(f"{name}={value}\n" for name, value in source.places.items())
    return f"""\
# `sh {SETUP}` makes .env of this file: it fills in the API key and the user, and keeps the rest. Change .env then.

# Where the weights are on the machine that runs this folder.
{places}
# The API key, and further ones as NAME:KEY[:SCOPE] with commas between. Only .env has them.
{Settings.vllm_api_key}=
{Settings.dflash_api_keys}=

# The user and group of the containers: the owner of .env, which they read.
{USER}=
"""


def ignored_files() -> str:
    """The `.gitignore`: a folder that is kept in Git must not take along what has a key."""
    return f"""\
# What `sh {SETUP}` and the door write, with keys. It stays on its machine.
/.env
/.env.*
/{ROUTER}/{KEYS}
/{DOOR}/data/
"""


def compose_text(document: Mapping[str, Any]) -> str:
    """The Compose file as text."""
    return HEADER.format(version=__version__) + yaml_of(document)


def weight_lists(source: ComposeSource) -> dict[str, str]:
    """For each role, the names of its files, and the sums of those that have one."""
    texts = {}
    for role, locked in source.locked.items():
        texts[f"{WEIGHTS}/{role}.files"] = "".join(f"{name}\n" for name in locked.files)
        sums = {name: digest for name, digest in locked.files.items() if digest}
        texts[f"{WEIGHTS}/{role}.sha256"] = "".join(f"{digest}  {name}\n" for name, digest in sums.items())
    return texts


def mounted_files(source: ComposeSource) -> dict[str, str]:
    """What the containers mount, beside the keys."""
    texts = {f"{DOOR}/{name}": text for name, text in source.door.items()}
    return {**texts, f"{ROUTER}/{MANIFEST}": router_list(source)} if source.routed else texts


def built_files(source: ComposeSource, document: Mapping[str, Any]) -> dict[str, str]:
    """What the images are built from."""
    needed = any("build" in service for service in document["services"].values())
    return {f"{BUILD}/{name}": text for name, text in source.build.items()} if needed else {}


def example_request(source: ComposeSource) -> str:
    """The body of one request, as JSON."""
    names = source.plan.settings.served_model_name or (source.plan.pair.target.served_name,)
    asked = {
        "model": names[0],
        "messages": [{"role": "user", "content": source.plan.pair.text.ask}],
        "max_tokens": 64,
    }
    return json.dumps(asked)


ROUTERS_NAME = "router"
"""The name of the router's key in DFLASH_API_KEYS; it opens GET /metrics only."""

SCRIPT = """\
#!/bin/sh
# Written by dflash-deploy {version} export compose.
# Makes .env from {template}, readable only by you: with a new API key, or with the one in a file.
#   sh {setup} [FILE]
set -eu
umask 077
# letters of a key are those of ASCII in every locale
LC_ALL=C
export LC_ALL
fail() {{ printf '{setup}: %s\\n' "$1" >&2; exit 1; }}
new() {{ openssl rand -hex 32 || fail "openssl cannot make a key: install it, and run this again"; }}
here=$(dirname -- "$0")
[ ! -e "$here/.env" ] || fail ".env exists, and its keys stay; remove it to make new ones"
if [ $# -gt 0 ]; then key=$(cat -- "$1"); else key=$(new); fi
case $key in
*[!A-Za-z0-9_-]*) fail "an API key has letters, digits, - and _ only" ;;
esac
[ "${{#key}}" -ge 16 ] || fail "an API key has at least 16 characters"
CDPATH= cd -- "$here"
# Compose names the project after the folder, and takes another folder of this name for the same project
name=$(printf %s "${{PWD##*/}}" | tr A-Z a-z | tr -cd a-z0-9_- | sed 's/^[_-]*//')
other=$(docker ps -a --filter "label=com.docker.compose.project=$name" \
  --format '{{{{.Label "com.docker.compose.project.working_dir"}}}}' 2>/dev/null | grep -vxF "$PWD") || other=
[ -z "$other" ] || fail "Docker has containers of the project $name from another folder: rename this one"
# what is left of a run that was killed
rm -f .env.new
trap 'rm -f .env.new' EXIT
trap 'exit 1' HUP INT TERM
{more}filled=0
# the last line may have no end
while IFS= read -r line || [ -n "$line" ]; do
  case $line in
  {key}=) line="{key}=$key" filled=$((filled + 1)) ;;
  {user}=) line="{user}=$(id -u):$(id -g)" filled=$((filled + 1)) ;;
{cases}  esac
  printf '%s\\n' "$line"
done < {template} > .env.new
[ "$filled" -eq {lines} ] || fail "{template} needs the lines {named}, each once and without a value"
mv .env.new .env
echo "wrote .env with the API key; \\`docker compose up -d\\` starts the containers"
"""

_ROUTER = f"""\
probe=$(new)
admin=$(new)
rm -f {ROUTER}/{KEYS}
printf '{{"admin": "%s", "probe": "%s"}}\\n' "$admin" "$probe" > {ROUTER}/{KEYS}
"""

_DATA = f"mkdir -p {DOOR}/data\n"


def setup_script(source: ComposeSource) -> str:
    """The text of setup.sh."""
    further = Settings.dflash_api_keys.name
    case = f'  {further}=) line="{further}={ROUTERS_NAME}:$probe:metrics" filled=$((filled + 1)) ;;\n'
    filled = [Settings.vllm_api_key.name, USER, *([further] if source.routed else [])]
    return SCRIPT.format(
        version=__version__,
        setup=SETUP,
        template=TEMPLATE,
        key=Settings.vllm_api_key.name,
        user=USER,
        more=(_ROUTER if source.routed else "") + (_DATA if source.plan.settings.published else ""),
        cases=case if source.routed else "",
        lines=len(filled),
        named=", ".join(f"{name}=" for name in filled),
    )


VARIABLES = {"target": Settings.model_host_path.name, "drafter": Settings.drafter_host_path.name}
"""The settings with the directories of the weights, by role."""

ANY = ("0.0.0.0", "::")  # noqa: S104 - compared, not listened on


def compose_readme(source: ComposeSource, document: Mapping[str, Any]) -> str:
    """The text of README.md."""
    plan = source.plan
    known = [(role, name) for role, name in VARIABLES.items() if name in source.places]
    start = plan.profile.first_start
    answers = plan.settings.answers_requests
    return filled(
        "compose",
        **of_plan(plan),
        services=", ".join(document["services"]),
        gpus="" if plan.engine.cpu else ", and the NVIDIA Container Toolkit",
        places="\n".join(f"- the {role}: `{name}`" for role, name in known),
        fetched="".join(_fetched(source, role) for role, _ in known),
        images="\n".join(_images(document)),
        minutes=max(1, round((start.seconds if start else 1200) / 60)),
        url=base_url(source) if answers else "",
        silent=not answers,
        trust=_trust(source),
        request=example_request(source).replace("'", "'\\''"),
        routed=source.routed,
        routers_name=ROUTERS_NAME,
        cores=source.routed and plan.engine.cpu,
        ranks=plan.settings.several_machines,
    )


def _images(document: Mapping[str, Any]) -> Iterator[str]:
    services = document["services"].values()
    built = {one["image"] for one in services if "build" in one}
    yield from (f"- `{image}` is built from `build/` if it is missing." for image in sorted(built))
    for image in sorted({one["image"] for one in services} - built):
        yield f"- `{image}` is pulled{'' if is_pinned(image) else '; it has no digest'}."


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


def compose_folder(source: ComposeSource) -> dict[str, str]:
    """The text of each file, by its path below the folder. No text has a secret."""
    document = compose_document(source)
    return {
        README: compose_readme(source, document),
        COMPOSE: compose_text(document),
        TEMPLATE: env_template(source),
        SETUP: setup_script(source),
        IGNORED: ignored_files(),
        **({LOCK: source.lock} if source.lock else {}),
        **weight_lists(source),
        **mounted_files(source),
        **built_files(source, document),
    }
