"""The bill of materials: valid by the schema, whole, and the same for the same packages."""

import json
from importlib import metadata
from pathlib import Path

import pytest
from cyclonedx.schema import SchemaVersion
from cyclonedx.validation.json import JsonStrictValidator

from dflash_deploy.serve.sbom import bill

STATUS = """\
Package: libc6
Status: install ok installed
Architecture: amd64
Version: 2.36-9+deb12u10
Description: GNU C Library
 with a second line: of text

Package: removed
Status: deinstall ok config-files
Architecture: amd64
Version: 1.0

Package: adduser
Status: install ok installed
Architecture: all
Version: 1:3.134
"""


@pytest.fixture
def debian(tmp_path: Path) -> dict[str, Path]:
    (tmp_path / "status").write_text(STATUS)
    (tmp_path / "os-release").write_text('PRETTY_NAME="Debian"\nID=debian\n')
    return {"dpkg": tmp_path / "status", "os_release": tmp_path / "os-release"}


def test_it_is_valid_by_the_schema(debian: dict[str, Path]) -> None:
    text = json.dumps(bill("dflash-deploy/vllm", "0.33.0", **debian))
    assert JsonStrictValidator(SchemaVersion.V1_6).validate_str(text) is None


def test_it_names_what_is_installed_and_nothing_else(debian: dict[str, Path]) -> None:
    document = bill("image", "1", **debian)
    components = document["components"]
    assert isinstance(components, list)
    places = {one["purl"] for one in components}
    assert "pkg:deb/debian/libc6@2.36-9+deb12u10?arch=amd64" in places
    assert "pkg:deb/debian/adduser@1:3.134?arch=all" in places
    assert not any("removed" in place for place in places)
    assert f"pkg:pypi/pydantic@{metadata.version('pydantic')}" in places
    assert f"pkg:pypi/pyyaml@{metadata.version('pyyaml')}" in places


def test_the_same_packages_give_the_same_document(debian: dict[str, Path]) -> None:
    assert bill("image", "1", **debian) == bill("image", "1", **debian)
    assert bill("image", "1", **debian) != bill("image", "2", **debian)


def test_an_image_of_another_family_has_its_python_listed(tmp_path: Path) -> None:
    nowhere = tmp_path / "nowhere"
    document = bill("image", "1", dpkg=nowhere, os_release=nowhere)
    assert JsonStrictValidator(SchemaVersion.V1_6).validate_str(json.dumps(document)) is None
