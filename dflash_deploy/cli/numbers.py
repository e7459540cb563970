"""Numbers with commas between, as options take them, and the units of sizes."""

from __future__ import annotations

from dflash_deploy.errors import BadInput

MOST_CONCURRENT = 4096
MOST_OF_A_HEAD = 16

GIB = 2**30
"""Bytes of memory."""

GB = 1e9
"""Bytes of a file, as disks and downloads count them."""


def size_of(weights: int) -> str:
    """The size of weights: in MB below 0.1 GB, such as the tiny pair."""
    return f"{weights / GB:.1f} GB" if weights >= GB / 10 else f"{weights / 1e6:.0f} MB"


def sizes_of(target: int, drafter: int) -> str:
    """The sizes of target and drafter; the unit once if both have the same."""
    first, second = size_of(target), size_of(drafter)
    unit = f" {second.rpartition(' ')[2]}"
    return f"{first.removesuffix(unit)} + {second}"


def some(number: float) -> str:
    """A number of sequences, with a decimal only if it matters."""
    return f"{number:.1f}" if number < 100 else f"{number:,.0f}"


def concurrency_of(written: str) -> tuple[int, ...]:
    """The numbers of requests at the same time, each once, in rising order. Raises BadInput."""
    try:
        numbers = {int(part) for part in written.split(",")}
    except ValueError:
        numbers = set()
    if not numbers or not all(1 <= number <= MOST_CONCURRENT for number in numbers):
        raise BadInput(
            f"`--concurrency {written}` is not valid (numbers from 1 to {MOST_CONCURRENT})",
            hint="such as --concurrency 1,2,4,8",
        )
    return tuple(sorted(numbers))


def head_tokens_of(written: str) -> tuple[int, ...] | None:
    """The numbers of draft tokens of the MTP head: none for `off`, `None` if nothing is given. Raises BadInput."""
    if written in {"", "off"}:
        return None if not written else ()
    try:
        numbers = tuple(int(part) for part in written.split(","))
    except ValueError:
        numbers = ()
    if not numbers or not all(1 <= number <= MOST_OF_A_HEAD for number in numbers):
        raise BadInput(
            f"`--mtp {written}` is not valid (`off`, or numbers from 1 to {MOST_OF_A_HEAD})", hint="such as --mtp 2,4"
        )
    return numbers


def draft_tokens_of(written: str) -> tuple[int, ...]:
    """The numbers of draft tokens; empty if none are given. Raises BadInput."""
    try:
        return tuple(int(part) for part in written.split(",")) if written else ()
    except ValueError:
        raise BadInput(
            f"`--draft-tokens {written}` is not valid (numbers with commas between)",
            hint="such as --draft-tokens 1,3,7",
        ) from None
