"""Putting a plan together: catalog, then this machine, then what was asked for, then what `.env` says."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path

from dflash_deploy.assets import asset, build_digest
from dflash_deploy.catalog import Catalog, EngineRelease, ModelPair, Profile
from dflash_deploy.catalog.schema import Choice as CatalogChoice
from dflash_deploy.catalog.schema import Weights
from dflash_deploy.catalog.settings import setting_names
from dflash_deploy.errors import SettingsRefused
from dflash_deploy.host import HostFacts
from dflash_deploy.plan.choose import choose_profile, choose_runtime
from dflash_deploy.plan.command import check_values, in_home, is_directory
from dflash_deploy.plan.result import Plan, RuntimeName, Setting
from dflash_deploy.plan.rules import judge
from dflash_deploy.serve.secrets import SECRET_NAMES
from dflash_deploy.serve.settings import OFF

NEVER_EMPTY = frozenset(
    {
        "DFLASH_PROFILE",
        "DFLASH_PAIR",
        "DFLASH_RUNTIME",
        "DFLASH_BIND",
        "DFLASH_PORT",
        "DFLASH_IMAGE",
        "DFLASH_BASE_IMAGE",
    }
)
"""Settings of this tool: an empty one stands for the planned value. One of the engine leaves the choice to it."""


@dataclass(frozen=True)
class Choice:
    """What a person asked for. `None` leaves it to the plan; `edited` holds the lines of an existing `.env`."""

    profile: str | None = None
    pair: str | None = None
    runtime: RuntimeName | None = None
    host: str | None = None
    port: int | None = None
    models_dir: Path = Path("~/models")
    edited: Mapping[str, str] = field(default_factory=dict)


def plan_deployment(facts: HostFacts, choice: Choice, catalog: Catalog) -> Plan:
    """Decide everything about one deployment.

    Raises UnknownProfile where no profile is named and none fits, UnknownPair, and SettingsRefused for a value of the
    wrong kind: what is planned can be written down and started.
    """
    profile = _profile(facts, choice, catalog)
    pair = _pair(profile, choice, catalog)
    engine = catalog.engines[profile.engine]
    runtime = _runtime(facts, choice, engine)
    proposed = {
        setting.name: setting
        for setting in (
            *_identity(profile, pair, runtime),
            *_endpoint(choice),
            *_weights(pair, choice.models_dir),
            *_image(engine),
            *_chosen(pair.settings, f"pair {pair.name}"),
            *_chosen(profile.settings, f"profile {profile.name}"),
        )
    }
    settings = tuple(_settled(proposed, _with_drafter_path(choice.edited, choice.models_dir)))
    installed = facts.native_engine if runtime == "native" else None
    version = installed.version if installed else engine.version
    plan = Plan(profile, pair, engine, version, runtime, settings, ())
    check_values(plan.values)
    return replace(plan, findings=tuple(judge(plan, facts)))


def _profile(facts: HostFacts, choice: Choice, catalog: Catalog) -> Profile:
    name = choice.profile or choice.edited.get("DFLASH_PROFILE")
    return catalog.profile(name) if name else choose_profile(facts, catalog)


def _pair(profile: Profile, choice: Choice, catalog: Catalog) -> ModelPair:
    name = choice.pair or choice.edited.get("DFLASH_PAIR") or profile.pair
    return catalog.pair(name)


def _runtime(facts: HostFacts, choice: Choice, engine: EngineRelease) -> RuntimeName:
    if choice.runtime:
        return choice.runtime
    match choice.edited.get("DFLASH_RUNTIME"):
        case "compose":
            return "compose"
        case "native":
            return "native"
        case None | "":
            return choose_runtime(facts, engine)
        case other:
            raise SettingsRefused(f"DFLASH_RUNTIME={other} is no runtime", hint="write compose or native")


def _identity(profile: Profile, pair: ModelPair, runtime: RuntimeName) -> Iterator[Setting]:
    yield Setting("DFLASH_PROFILE", profile.name, "init", profile.title)
    yield Setting("DFLASH_PAIR", pair.name, f"profile {profile.name}", pair.title)
    yield Setting("DFLASH_RUNTIME", runtime, "init", "how the engine is run on this machine")


def _endpoint(choice: Choice) -> Iterator[Setting]:
    host, port = choice.host or "127.0.0.1", choice.port or 8000
    yield Setting(
        "DFLASH_BIND", host, "--host" if choice.host else "default", "this machine alone unless asked otherwise"
    )
    yield Setting("DFLASH_PORT", str(port), "--port" if choice.port else "default", "where clients find the endpoint")


def _weights(pair: ModelPair, models_dir: Path) -> Iterator[Setting]:
    origin = f"pair {pair.name}"
    yield Setting("MODEL_HOST_PATH", _directory(pair.target, models_dir), origin, "where the target's weights lie")
    drafter = _directory(pair.drafter, models_dir)
    yield Setting("DFLASH_DRAFTER", pair.drafter.repo or drafter, origin, "the drafter that belongs to this target")
    yield Setting("DRAFTER_HOST_PATH", drafter, origin, "where the drafter's weights lie")


def _directory(weights: Weights, models_dir: Path) -> str:
    if weights.bundled is not None:
        return str(asset(weights.bundled))
    assert weights.repo is not None  # noqa: S101 - the catalog's schema test holds it
    return _below(models_dir, weights.repo)


def _below(models_dir: Path, repo: str) -> str:
    """Where the weights of a repository lie: a directory of its name, without the owner."""
    return str(in_home(models_dir).absolute() / repo.rsplit("/", 1)[-1])


def _image(engine: EngineRelease) -> Iterator[Setting]:
    origin = f"engine {engine.name}"
    image = f"{engine.image}-{build_digest()}"
    yield Setting(
        "DFLASH_IMAGE", image, origin, "built here from images/vllm, which the last digits stand for, if absent"
    )
    yield Setting("DFLASH_BASE_IMAGE", engine.base_image, origin, "what that image is built on")


def _chosen(choices: Mapping[str, CatalogChoice], origin: str) -> Iterator[Setting]:
    for name, chosen in choices.items():
        yield Setting(name, str(chosen.value), origin, chosen.reason)


def _with_drafter_path(edited: Mapping[str, str], models_dir: Path) -> Mapping[str, str]:
    """`.env` with the directory of the drafter it names, where it names one without saying where its weights lie."""
    drafter = edited.get("DFLASH_DRAFTER", "")
    if edited.get("DRAFTER_HOST_PATH") or drafter.lower() in OFF:
        return edited
    path = drafter if is_directory(drafter) else _below(models_dir, drafter)
    return {**edited, "DRAFTER_HOST_PATH": path}


def _settled(proposed: Mapping[str, Setting], edited: Mapping[str, str]) -> Iterator[Setting]:
    """Each setting in the template's order; what `.env` says differently wins, and says so."""
    others = [name for name in edited if name not in setting_names()]
    for name in (*setting_names(), *others):
        if name in SECRET_NAMES:
            continue
        setting = proposed.get(name, Setting(name, "", "default", "left to the engine"))
        if name in NEVER_EMPTY and not edited.get(name):
            yield setting
            continue
        if name in edited and edited[name] != setting.value:
            reason = f"edited; the plan would say {setting.value}" if setting.value else "edited"
            setting = Setting(name, edited[name], ".env", reason)
        yield setting
