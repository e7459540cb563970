"""The pages of the catalog: profiles, models and engine releases."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import groupby

from dflash_deploy.catalog.hardware import Profile
from dflash_deploy.catalog.load import Catalog
from dflash_deploy.catalog.models import ModelPair
from dflash_deploy.catalog.read import Settings
from dflash_deploy.catalog.recipes import offered
from dflash_deploy.catalog.releases import EngineRelease
from dflash_deploy.cli.options import sizes_of
from dflash_deploy.cli.recipes import summary
from tools.reference.markdown import GENERATED, code, joined, table

_EVIDENCE = """- `verified`: this project has run it.
- `reported`: the named source has run it.
- `untested`: read or inferred, not run.
"""

_COMPUTED = """## GPUs without a profile

A GPU of this table is planned from its own figures: its profile is `computed`. It has the settings of the nearest
profile, by compute capability, and no speed that was measured on another GPU. Several equal GPUs have a profile too:
`NAME-x2`, `NAME-x4` and `NAME-x8`. `gpus.yaml` of a [custom catalog](catalog/README.md) adds GPUs.
"""

_PROFILES = f"""# Profiles

A profile is one kind of machine: how it is recognised, its hardware, and the settings that suit it. `dflash-deploy
init` recognises the machine; `--profile` chooses a profile. `dflash-deploy profiles show NAME` prints the same as this
page. A [custom catalog](catalog/README.md) adds profiles.

> **Not run on a GPU.** This project has run only the profile `cpu`.

{_EVIDENCE}
{GENERATED.format(source="`dflash_deploy/catalog/profiles/`")}
"""

_MODELS = """# Models

{pairs} model pairs of {families} families: a target, and the drafter that was trained for it. `dflash-deploy models
list` shows which ones fit this machine, and why others do not. `dflash-deploy init --model NAME` chooses one, by the
name of the pair or by the target's repository on the Hugging Face Hub. See [choose a
model](../how-to/choose-a-model.md).

{generated}
"""

_ENGINES = f"""# Engines

The engine releases that the catalog knows. A profile lists engines in order of preference; `dflash-deploy plan`
chooses the first one that is compatible with the model and says why. `dflash-deploy init --engine NAME` chooses
another.

{_EVIDENCE}
{GENERATED.format(source="`dflash_deploy/catalog/engines/`")}
"""


def profiles(catalog: Catalog) -> str:
    """The page of profiles: a table of all, then each one with its settings."""
    known = catalog.profiles.values()
    rows = ((f"[{one.name}](#{one.name})", one.title, code(one.pair), one.evidence.state) for one in known)
    overview = table(("profile", "machine", "default model", "evidence"), rows)
    return joined(_PROFILES, *overview, _COMPUTED, *_gpus(catalog), *(_profile(one, catalog) for one in known))


def _gpus(catalog: Catalog) -> Iterator[str]:
    head = ("profile", "GPU", "compute capability", "memory, GiB", "GB/s", "BF16 TFLOPS", "settings of", "source")
    rows = []
    for one in catalog.gpu_models:
        found = catalog.profile(one.name)
        if found.evidence.state == "computed":
            like = code(found.evidence.by.split(",")[0].rsplit(" ", 1)[-1])
            figures = (f"{number:g}" for number in (one.memory_gib, one.bandwidth, one.tflops))
            rows.append((code(one.name), one.title, one.compute_capability, *figures, like, one.source))
    return table(head, rows)


def _profile(profile: Profile, catalog: Catalog) -> str:
    hardware = profile.hardware
    parts = [
        f"## {profile.name}\n",
        f"{profile.title}: {profile.evidence.state}, {profile.evidence.by}.\n",
        f"- GPUs: {profile.gpus}" + (f" in {hardware.machines} machines" if hardware.machines > 1 else ""),
        f"- Memory: {hardware.memory_gib:g} GiB"
        + (" per GPU" if profile.gpus and not hardware.unified else "")
        + (", shared with the system" if hardware.unified else ""),
        f"- Bandwidth: {hardware.bandwidth:g} GB/s; BF16 arithmetic: {hardware.tflops:g} TFLOPS ({hardware.source})",
        f"- Engines, in order of preference: {', '.join(code(one.release) for one in profile.engines)}\n",
    ]
    rows = [("all", *row) for row in _settings(profile.settings)]
    for one in profile.engines:
        rows += [(code(one.release), *row) for row in _settings(one.settings)]
    return "\n".join((*parts, *table(("engine", "setting", "reason", "source"), rows), *_recipes(profile, catalog)))


def _recipes(profile: Profile, catalog: Catalog) -> Iterator[str]:
    """The recipes of a profile, and the settings in which they differ from it."""
    recipes = offered(profile, catalog)
    if not recipes:
        return
    head = ("recipe", "model and engine", "published for one request", "why", "evidence")
    rows = []
    for one in recipes:
        recipe = one.recipe
        name = code(recipe.name) + (" (default)" if recipe.default else "")
        rows.append((name, f"{code(recipe.pair)}, {code(recipe.engine)}", summary(one), recipe.why, recipe.evidence.by))
    yield from table(head, rows)
    settings = [(code(one.name), *row) for one in profile.recipes for row in _settings(one.settings)]
    if settings:
        yield from table(("recipe", "setting", "reason", "source"), settings)


def _settings(settings: Settings) -> Iterator[tuple[str, str, str]]:
    for name, one in settings.items():
        value = ("on" if one.value else "off") if isinstance(one.value, bool) else one.value
        yield code(f"{name}={value}"), one.reason, one.source


def models(catalog: Catalog) -> str:
    """The page of models: a table for each family."""
    families = [(family, list(pairs)) for family, pairs in groupby(catalog.pairs.values(), lambda one: one.family)]
    head = _MODELS.format(
        pairs=len(catalog.pairs),
        families=len(families),
        generated=GENERATED.format(source="`dflash_deploy/catalog/families/`"),
    )
    parts = [head]
    for family, pairs in families:
        parts += [f"## {family.title}\n", *_family(pairs)]
    return joined(*parts)


def _family(pairs: Iterable[ModelPair]) -> Iterator[str]:
    head = ("model", "target", "quantization", "weights", "licence", "drafter", "most draft tokens")
    rows = []
    notices = []
    for pair in pairs:
        target, drafter = pair.target, pair.drafter
        size = sizes_of(target.bytes, drafter.bytes)
        licence = target.licence + (" (gated)" if target.gated else "")
        here, there = (code(one.repo or one.bundled or "") for one in (target, drafter))
        most = str(drafter.most_draft_tokens)
        rows.append((code(pair.name), here, target.quantisation, size, licence, there, most))
        if target.notice:
            notices.append(f"- `{pair.name}`: {target.notice}")
    yield from table(head, rows)
    if notices:
        yield from (*notices, "")


def engines(catalog: Catalog) -> str:
    """The page of engine releases: a table of all, then what each one loads and its known bugs."""
    known = catalog.engines.values()
    rows = (
        (f"[{one.name}](#{_anchor(one.name)})", one.title, str(one.released or ""), one.evidence.state) for one in known
    )
    overview = table(("release", "engine", "released", "evidence"), rows)
    return joined(_ENGINES, *overview, *(_engine(one) for one in known))


def _anchor(title: str) -> str:
    """The anchor of a heading: GitHub's and the site's rules agree if a title has no dot, which both drop."""
    return title.lower().replace(".", "")


def _engine(release: EngineRelease) -> str:
    images = ", ".join(f"{code(one.tag)} ({processor})" for processor, one in release.base_images.items())
    loads = ", ".join(f"{name} ({lowest})" if not release.cpu else name for name, lowest in release.loads.items())
    parts = [
        f"## {release.name}\n",
        f"{release.title}: {release.evidence.state}, {release.evidence.by}.\n",
        f"- Base image: {images or 'none'}",
        f"- Quantizations{'' if release.cpu else ', with the lowest compute capability'}: {loads}",
        f"- Drafters: {', '.join(code(one) for one in release.drafters)}\n",
    ]
    if not release.bugs:
        return "\n".join(parts)
    rows = ((bug.what, bug.workaround, bug.until or "open", bug.source) for bug in release.bugs)
    return "\n".join((*parts, *table(("known bug", "workaround", "fixed in", "source"), rows)))
