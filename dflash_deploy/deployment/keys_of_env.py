"""The API keys in the text of a `.env`: found as whole words, and taken over from another one."""

from __future__ import annotations

import re

from dflash_deploy.deployment import dotenv
from dflash_deploy.serve.api_keys import KEY
from dflash_deploy.serve.settings import Settings

NAMES = (Settings.vllm_api_key.name, Settings.dflash_api_keys.name)


def whole_word(key: str) -> re.Pattern[str]:
    """Return a pattern that finds a key, but not inside a longer one."""
    return re.compile(rf"(?<![\w-]){re.escape(key)}(?![\w-])")


def with_keys_of(text: str, other: str) -> str:
    """Return the text `other` with the keys of `text`, all else kept. Raises SettingsRefused if a line is damaged."""
    keys, before = dotenv.parse(text), dotenv.parse(other)
    for name in NAMES:
        old, new = before.get(name, ""), keys.get(name, "")
        if old != new:
            other = dotenv.replace_value(other, name, new)
            # other settings may have the owner's key too
            other = whole_word(old).sub(new, other) if KEY.fullmatch(old) and KEY.fullmatch(new) else other
    return other
