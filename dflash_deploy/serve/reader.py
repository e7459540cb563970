"""Values of environment variables by kind; every complaint names the variable."""

from __future__ import annotations

import shlex
from collections.abc import Mapping

from dflash_deploy.serve.refusal import Refused

_TRUE = frozenset({"1", "true", "on", "yes"})
_FALSE = frozenset({"0", "false", "off", "no"})


class Reader:
    """Reads one mapping. An absent variable and an empty one are the same: `None`."""

    def __init__(self, environment: Mapping[str, str]) -> None:
        self._environment = environment

    def text(self, name: str) -> str | None:
        """Any text."""
        return self._environment.get(name, "").strip() or None

    def required(self, name: str) -> str:
        """Text that must be there; raises Refused."""
        value = self.text(name)
        if value is None:
            raise Refused(f"{name} is not set", hint=f"set {name} in .env")
        return value

    def positive(self, name: str) -> int | None:
        """A whole number from 1 on; raises Refused for other text."""
        value = self.whole(name)
        if value == 0:
            raise Refused(f"{name}=0 is not a positive whole number", hint=f"write {name} as digits, such as 8")
        return value

    def whole(self, name: str) -> int | None:
        """A whole number from 0 on; raises Refused for other text."""
        value = self.text(name)
        if value is None:
            return None
        # no size is longer, and Python refuses to read thousands of digits
        if not value.isascii() or not value.isdigit() or len(value) > 9:
            raise Refused(f"{name}={value} is not a positive whole number", hint=f"write {name} as digits, such as 8")
        return int(value)

    def fraction(self, name: str) -> float | None:
        """A number above 0, at most 1; raises Refused for anything else."""
        value = self.text(name)
        if value is None:
            return None
        try:
            number = float(value)
        except ValueError:
            number = -1.0
        if not 0.0 < number <= 1.0:
            raise Refused(
                f"{name}={value} is not a fraction", hint=f"{name} lies above 0 and at most at 1, such as 0.85"
            )
        return number

    def switch(self, name: str) -> bool | None:
        """on or off, in any of their spellings; raises Refused for anything else."""
        value = (self.text(name) or "").lower()
        if value in _TRUE:
            return True
        if value in _FALSE:
            return False
        if value:
            raise Refused(f"{name}={value} is neither on nor off", hint=f"write {name}=on or {name}=off")
        return None

    def words(self, name: str) -> tuple[str, ...]:
        """Words split as a shell would, so that JSON with spaces survives inside single quotes; raises Refused."""
        try:
            return tuple(shlex.split(self.text(name) or ""))
        except ValueError as problem:
            raise Refused(f"{name} cannot be split into words: {problem}", hint="close the quotes") from None
