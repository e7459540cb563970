"""The manual of `fleet.yaml`: the commented example, and its JSON Schema."""

from __future__ import annotations

import json
from pathlib import Path

from dflash_deploy.features.fleet.file import Fleet, fleet_text, host_from

FILE = Path(__file__).resolve().parents[2] / "docs" / "reference" / "fleet.yaml"


def example() -> str:
    """The file that `fleet init` writes."""
    return fleet_text((host_from("spark-a=nvidia@192.168.1.10"), host_from("spark-b=nvidia@192.168.1.11")))


def schema() -> str:
    """The JSON Schema of `fleet.yaml`, for editors."""
    return json.dumps(Fleet.model_json_schema(), indent=2) + "\n"
