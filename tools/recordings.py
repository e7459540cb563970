"""What the catalog's combinations become, as files to compare before and after a change of the code.

`python -m tools.recordings DIR` writes a file for each combination of profile, pair, engine and recipe, and for each
runtime: the document of `plan --json`, `.env`, `compose.yaml`, the engine's command; and the score of the diagnosis.
`python -m tools.recordings BEFORE AFTER` prints each line that differs, with the number of files it differs in.
"""

from __future__ import annotations

import difflib
import json
import re
import sys
import tempfile
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

from dflash_deploy.catalog.load import load_catalog
from dflash_deploy.deployment.compose import create
from dflash_deploy.deployment.directory import Deployment
from dflash_deploy.document import as_document
from dflash_deploy.errors import DeployError
from dflash_deploy.operations.plan import Planned
from dflash_deploy.plan.result import RUNTIMES, Choice, Plan
from dflash_deploy.rules.table import combinations, plan_deployment
from tests.support.machines import MACHINES
from tools.diagnosis.score import table

# Lines that differ with each deployment: keys, hashes, the name of the project.
CHANGES = re.compile(r"(?m)^(VLLM_API_KEY=|.*(?:hash|-keys): ).*|^(name: ).*")


def choices() -> Iterator[tuple[str, Choice]]:
    """Each combination that the catalog allows, in each runtime, with a name for its file."""
    catalog = load_catalog()
    for runtime in RUNTIMES:
        for profile, pair, engine in combinations(catalog):
            master = "10.0.0.1" if profile.hardware.machines > 1 else None
            choice = Choice(
                profile=profile.name, model=pair.name, engine=engine.name, runtime=runtime, master_addr=master
            )
            yield f"{profile.name} {pair.name} {engine.name} {runtime}", choice
        for profile in catalog.profiles.values():
            for recipe in profile.recipes:
                choice = Choice(profile=profile.name, recipe=recipe.name, runtime=runtime)
                yield f"{profile.name} recipe {recipe.name} {runtime}", choice


def recorded(choice: Choice, anywhere: Path) -> str:
    """The plan and the files of a choice, as one text; the refusal if it is refused."""
    try:
        plan = plan_deployment(MACHINES[choice.profile or ""], choice, load_catalog())
        planned = Planned.of(plan)
    except DeployError as refusal:
        return f"refused: {refusal.message}\nhint: {refusal.hint}\n"
    document = planned.document() | {"findings": as_document(plan.findings)}
    return json.dumps(document, indent=1, ensure_ascii=False) + "\n" + _files(plan, anywhere)


def _files(plan: Plan, anywhere: Path) -> str:
    with tempfile.TemporaryDirectory(dir=anywhere) as name:
        deployment = Deployment(Path(name))
        create(deployment, plan)
        texts = (path.read_text(encoding="utf-8") for path in (deployment.env_file, deployment.compose_file))
        return CHANGES.sub(r"\1\2…", "\n".join(texts)).replace(name, "DIR").replace(Path(name).name, "DIR")


def write(directory: Path) -> int:
    """Write the recordings into a directory, and return how many there are."""
    directory.mkdir(parents=True)
    (directory / "diagnosis").write_text(table() + "\n", encoding="utf-8")
    with tempfile.TemporaryDirectory() as anywhere:
        count = 0
        for name, choice in choices():
            (directory / name).write_text(recorded(choice, Path(anywhere)), encoding="utf-8")
            count += 1
    return count


def compared(before: Path, after: Path) -> str:
    """Each line that differs, the most frequent first, with the number of files and the name of one of them."""
    names = [{path.name for path in directory.iterdir()} for directory in (before, after)]
    counts, example = Counter[str](), dict[str, str]()
    for name in sorted(names[0] & names[1]):
        old, new = ((directory / name).read_text(encoding="utf-8").splitlines() for directory in (before, after))
        lines = difflib.unified_diff(old, new, n=0, lineterm="")
        changed = {line for line in lines if re.match(r"[+-](?![+-]{2})", line)}
        counts.update(changed)
        for line in changed:
            example.setdefault(line, name)
    differ = [f"{number:5}  {line}    ({example[line]})" for line, number in counts.most_common()]
    only = [f"only before: {name}" for name in sorted(names[0] - names[1])]
    only += [f"only after: {name}" for name in sorted(names[1] - names[0])]
    return "\n".join((*differ, *only, f"{len(differ)} lines differ in {len(names[0] & names[1])} files"))


if __name__ == "__main__":
    match sys.argv[1:]:
        case [directory]:
            sys.stdout.write(f"{write(Path(directory))} recordings\n")
        case [before, after]:
            sys.stdout.write(compared(Path(before), Path(after)) + "\n")
        case _:
            sys.exit(__doc__)
