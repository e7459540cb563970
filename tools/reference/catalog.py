"""The pages of the catalog: profiles, models and engine releases."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import groupby

from dflash_deploy.catalog.load import Catalog
from dflash_deploy.catalog.models import ModelPair
from dflash_deploy.catalog.recipes import evidence, offered
from dflash_deploy.catalog.releases import EngineRelease
from dflash_deploy.cli.options import sizes_of
from dflash_deploy.cli.planned import summary
from dflash_deploy.plan.choose import best
from tools.reference.markdown import BUILT, GENERATED, code, joined, table

_EVIDENCE = """- `verified`: this project has run it.
- `reported`: the named source has run it.
- `untested`: read or inferred, not run.
"""

_COMPUTED = """## GPUs without a profile

A GPU of this table is planned from its own figures: its profile is `computed`. It has the settings of the nearest
profile, by compute capability, and no speed that was measured on another GPU. Several equal GPUs have a profile too:
`NAME-x2`, `NAME-x4` and `NAME-x8`. `dflash_deploy/catalog/gpus.yaml` has the sources of the figures; `gpus.yaml` of
a [custom catalog](catalog/README.md) adds GPUs.
"""

_PROFILES = f"""# Profiles

A profile is one kind of machine: how it is recognised, its hardware, and the settings that suit it. `dflash-deploy
init` recognises the machine; `--profile` chooses a profile. `dflash-deploy profiles show NAME` prints its evidence, and
its settings with their reasons and sources. A [custom catalog](catalog/README.md) adds profiles.

> **Not run on a GPU.** This project has run only the profile `cpu`.

{_EVIDENCE}
{GENERATED.format(source="`dflash_deploy/catalog/profiles/`")}
"""

_RECIPES = """## Recipes

Published combinations of models, engine and settings: `dflash-deploy init --recipe NAME`. The speed is for one request.
"""

_MODELS = """# Models

{pairs} model pairs of {families} families: a target, and the drafter that was trained for it. `dflash-deploy models
list` shows which ones fit this machine, and why others do not. `dflash-deploy models show NAME` has licence and limits.
`dflash-deploy init --model NAME` chooses one, by the name of the pair or by the target's repository on the Hugging Face
Hub. See [choose a model](../how-to/choose-a-model.md).

{generated}
"""

_ENGINES = f"""# Engines

The engine releases that the catalog knows. A profile lists engines in order of preference; `dflash-deploy plan`
chooses the first one that is compatible with the model and says why. `dflash-deploy init --engine NAME` chooses
another.

{_EVIDENCE}
{BUILT.format(source="`dflash_deploy/catalog/engines/`")}
"""


_PREFIXES = """## Second turns

What drafts do to the prefix cache: `kept`, a second turn reads only its new part; `spoiled`, the drafter's part of a
prefix is missing or stale, and acceptance falls; `crashes`, with the cache on.
"""


def profiles(catalog: Catalog) -> str:
    """The page of profiles: a table of all, of their recipes, and of the GPUs that have none."""
    head = ("profile", "machine", "memory, GiB", "GB/s", "BF16 TFLOPS", "default model", "engines", "evidence")
    rows = []
    for one in catalog.profiles.values():
        figures = (f"{number:g}" for number in (one.hardware.memory_gib, one.hardware.bandwidth, one.hardware.tflops))
        engines = ", ".join(choice.release for choice in one.engines)
        first = next(best(one, catalog))
        state = evidence(one, first.pair, first.engine).state
        rows.append((code(one.name), one.title, *figures, code(first.pair.name), engines, state))
    return joined(_PROFILES, *table(head, rows), _RECIPES, *_recipes(catalog), _COMPUTED, *_gpus(catalog))


def _gpus(catalog: Catalog) -> Iterator[str]:
    head = ("profile", "compute capability", "memory, GiB", "GB/s", "BF16 TFLOPS", "settings of")
    rows = []
    for one in catalog.gpu_models:
        found = catalog.profile(one.name)
        if found.evidence.state == "computed":
            like = code(found.evidence.by.split(",")[0].rsplit(" ", 1)[-1])
            figures = (f"{number:g}" for number in (one.memory_gib, one.bandwidth, one.tflops))
            rows.append((code(one.name), one.compute_capability, *figures, like))
    return table(head, rows)


def _recipes(catalog: Catalog) -> Iterator[str]:
    rows = []
    for profile in catalog.profiles.values():
        for one in offered(profile, catalog):
            recipe = one.recipe
            name = f"{code(profile.name)} {code(recipe.name)}"
            rows.append((name, f"{code(recipe.pair)}, {code(recipe.engine)}", summary(one), recipe.why))
    return table(("profile and recipe", "model and engine", "published", "why"), rows)


def models(catalog: Catalog) -> str:
    """The page of models: a table for each family."""
    families = [(family, list(pairs)) for family, pairs in groupby(catalog.pairs.values(), lambda one: one.family)]
    head = _MODELS.format(
        pairs=len(catalog.pairs),
        families=len(families),
        generated=BUILT.format(source="`dflash_deploy/catalog/families/`"),
    )
    parts = [head]
    for family, pairs in families:
        parts += [f"## {family.title}\n", *_family(pairs)]
    notices: dict[str, list[str]] = {}
    for pair in catalog.pairs.values():
        notices.setdefault(pair.target.notice, []).append(code(pair.name))
    told = (f"- {', '.join(names)}: {notice}" for notice, names in notices.items() if notice)
    return joined(*parts, "## Notices\n", *told)


def _family(pairs: Iterable[ModelPair]) -> Iterator[str]:
    head = ("model", "target", "quantization", "weights", "drafter")
    rows = []
    for pair in pairs:
        target, drafter = pair.target, pair.drafter
        size = sizes_of(target.bytes, drafter.bytes)
        here, there = (code(one.repo or one.bundled or "") for one in (target, drafter))
        rows.append((code(pair.name), here, target.quantisation, size, there))
    yield from table(head, rows)


def engines(catalog: Catalog) -> str:
    """The page of engine releases: a table of all, then what each one loads and its known bugs."""
    known = catalog.engines.values()
    rows = (
        (f"[{one.name}](#{_anchor(one.name)})", one.title, str(one.released or ""), one.evidence.state) for one in known
    )
    overview = table(("release", "engine", "released", "evidence"), rows)
    prefixes = [
        (code(one.name), one.prefix_cache.with_drafts, one.prefix_cache.by) for one in known if one.prefix_cache
    ]
    kept = table(("release", "prefix cache with drafts", "evidence"), prefixes)
    return joined(_ENGINES, *overview, _PREFIXES, *kept, *(_engine(one) for one in known))


def _anchor(title: str) -> str:
    """The anchor of a heading: GitHub's and the site's rules agree if a title has no dot, which both drop."""
    return title.lower().replace(".", "")


def _engine(release: EngineRelease) -> str:
    images = ", ".join(f"{code(one.tag)} ({processor})" for processor, one in release.base_images.items())
    of_lowest: dict[str, list[str]] = {}
    for name, lowest in release.loads.items():
        of_lowest.setdefault("" if release.cpu else f" ({lowest})", []).append(name)
    loads = "; ".join(f"{', '.join(names)}{lowest}" for lowest, names in of_lowest.items())
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
