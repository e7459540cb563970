"""Each spelling of an earlier version is gone, and its error says what to do instead."""

from typing import Any

import pytest

from dflash_deploy.catalog.settings import all_setting_names
from dflash_deploy.cli.app import COMMANDS, load
from dflash_deploy.deployment.dotenv import check_keys
from dflash_deploy.errors import SettingsRefused
from dflash_deploy.gone import GONE

SETTINGS = sorted(name for name in GONE if name.isupper())
SPELLINGS = sorted(GONE.keys() - set(SETTINGS))


def found(words: list[str]) -> Any:
    """The command with these words; `None` if there is none."""
    command = load(words[0]) if words[0] in COMMANDS else None
    for word in words[1:]:
        command = getattr(command, "commands", {}).get(word)
    return command


@pytest.mark.parametrize("name", SETTINGS)
def test_a_setting_is_gone(name: str) -> None:
    assert name not in all_setting_names()
    with pytest.raises(SettingsRefused, match="no longer a setting") as refused:
        check_keys([name])
    assert refused.value.hint == GONE[name]


@pytest.mark.parametrize("spelling", SPELLINGS)
def test_a_command_or_an_option_is_gone(spelling: str) -> None:
    *words, last = spelling.split()
    if last.startswith("--"):
        command = found(words)
        assert command is not None
        assert not [option for option in command.params if last in {*option.opts, *option.secondary_opts}]
    else:
        assert found([*words, last]) is None
