"""What the argument lists of all engines share."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from dflash_deploy.serve.refusal import Refused


def valued(flag: str, value: object | None) -> Iterator[str]:
    """A flag with its value; nothing where there is none."""
    if value is not None:
        yield flag
        yield str(value)


def refuse_known(extra_args: tuple[str, ...], settings_of: Mapping[str, str]) -> None:
    """Raises Refused where EXTRA_ARGS holds an argument that has a setting (`settings_of` says which).

    The last argument wins, unseen by the rules that a plan is held against.
    """
    for word in extra_args:
        # the engines' parsers take --api_key for --api-key
        flag = word.split("=", 1)[0].replace("_", "-")
        if flag in settings_of:
            raise Refused(f"EXTRA_ARGS holds {flag}, which has a setting of its own", hint=f"set {settings_of[flag]}")
