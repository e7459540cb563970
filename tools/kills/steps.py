"""Which effects of a command are worth a kill, and what such a kill shows."""

import re

from tools.kills.trial import Trial

# Effects in front of which everything has the names and the content that it has in front of the next one.
_SAME = re.compile(r"open |fsync |os\.ch(own|mod) |os\.mkdir (models|deployment(/\.dflash)?$)")

_COPIED = re.compile(r"deployment/\.dflash/build\.\d+(\.old)?/")  # one of many files that are copied alike

# Parts of names in which files differ that are fetched alike, and numbers of this run.
_ALIKE = re.compile(r"(?<=models/)\w+/|\.[0-9a-f]{8}$|\d+|(config|tokenizer)\.json|model\.safetensors")

_NAMING = ("os.rename", "os.link")
EVERY = 50


def steps(trial: Trial) -> list[int]:
    """The numbers of the effects in front of which a kill leaves something else than in front of another one."""
    last = {
        _ALIKE.sub("", effect): number
        for number, effect in enumerate(trial.effects, 1)
        if not _SAME.match(effect) and (not _COPIED.search(effect) or number % EVERY == 0)
    }
    return sorted({*last.values(), len(trial.effects)})


def wrong_after_kills(trial: Trial) -> list[str]:
    """Kill the command at each step, and cut the power where something got its name before: what is wrong."""
    found, named = [], False
    for number in steps(trial):
        effect = trial.effects[number - 1]
        for power in (False, True) if named else (False,):
            what = "power cut" if power else "kill"
            found += [f"{what} at {number} ({effect}): {one}" for one in trial.killed(at_effect=number, power=power)]
            trial.reset()
        named = effect.startswith(_NAMING) and not _COPIED.search(effect) and "/.pull/" not in effect
    return found
