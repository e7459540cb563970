"""Which settings exist. The commented template is the list: what stands in it is a setting, in that order."""

from __future__ import annotations

import re
from functools import cache

from dflash_deploy.assets import asset


@cache
def template_text() -> str:
    """The commented `.env` of the vLLM engine, all values empty."""
    return asset("env-templates", "vllm.env").read_text(encoding="utf-8")


@cache
def setting_names() -> tuple[str, ...]:
    """The names of all settings, in the order of the template."""
    return tuple(re.findall(r"^([A-Z][A-Z0-9_]*)=", template_text(), re.MULTILINE))
