"""The software bill of materials of an image, in CycloneDX format, written while the image is built.

`python3 -m dflash_deploy.serve.sbom FILE`: the distribution's packages, as dpkg lists them, and those of this Python.
Format: CycloneDX 1.6 JSON (ECMA-424); package URLs: package-url/purl-spec, types deb and pypi.
"""

from __future__ import annotations

import json
import re
import sys
import uuid
from collections.abc import Iterator, Mapping
from importlib import metadata
from pathlib import Path
from urllib.parse import quote

DPKG = Path("/var/lib/dpkg/status")
OS_RELEASE = Path("/etc/os-release")

Component = dict[str, object]


def bill(name: str, version: str, *, dpkg: Path = DPKG, os_release: Path = OS_RELEASE) -> dict[str, object]:
    """The document for an image of that name and version. It lists each package once."""
    found = [*_debian(dpkg, _distribution(os_release)), *_python()]
    components = sorted({str(one["bom-ref"]): one for one in found}.values(), key=lambda one: str(one["bom-ref"]))
    # without a time or a random number: the same packages give the same file and the same layer
    serial = uuid.uuid5(uuid.NAMESPACE_URL, "\n".join([name, version, *(str(one["bom-ref"]) for one in components)]))
    return {
        "bomFormat": "CycloneDX",
        "specVersion": "1.6",
        "serialNumber": f"urn:uuid:{serial}",
        "version": 1,
        "metadata": {"component": {"type": "container", "bom-ref": "image", "name": name, "version": version}},
        "components": components,
    }


def _python() -> Iterator[Component]:
    for package in metadata.distributions():
        name = package.metadata["Name"]
        if name and package.version:
            canonical = re.sub(r"[-_.]+", "-", name).lower()
            component = _component(name, package.version, f"pkg:pypi/{quote(canonical)}@{quote(package.version)}")
            expression = package.metadata.json.get("license_expression")
            yield component | ({"licenses": [{"expression": expression}]} if expression else {})


def _debian(status: Path, distribution: str) -> Iterator[Component]:
    """Installed packages of dpkg's status file; images of other distributions have none."""
    try:
        stanzas = status.read_text(encoding="utf-8").split("\n\n")
    except OSError:
        return
    for fields in map(_fields, stanzas):
        if fields.get("Status", "").endswith(" installed"):
            name, version = fields["Package"], fields["Version"]
            place = f"pkg:deb/{quote(distribution)}/{quote(name)}@{quote(version, safe='.~+-:')}"
            yield _component(name, version, f"{place}?arch={quote(fields.get('Architecture', 'all'))}")


def _fields(stanza: str) -> Mapping[str, str]:
    pairs = (line.partition(": ") for line in stanza.splitlines() if not line.startswith(" "))
    return {name: value for name, _, value in pairs}


def _distribution(os_release: Path) -> str:
    try:
        lines = os_release.read_text(encoding="utf-8").splitlines()
    except OSError:
        return "debian"
    return next((line[3:].strip('"') for line in lines if line.startswith("ID=")), "debian")


def _component(name: str, version: str, purl: str) -> Component:
    return {"type": "library", "bom-ref": purl, "name": name, "version": version, "purl": purl}


if __name__ == "__main__":
    target, name, version = (*sys.argv[1:], "", "", "")[:3]
    text = json.dumps(bill(name or "image", version or "unknown"), indent=1)
    if target:
        Path(target).write_text(text + "\n", encoding="utf-8")
    else:
        print(text)
