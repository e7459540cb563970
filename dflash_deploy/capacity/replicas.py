"""How many replicas a load needs: the most users that one engine serves within the goals, and users divided by it.

Users are divided evenly and stay with their replica, as a router for prefixes keeps them. A router that sends each
request to the least busy replica does at least as well, so the number is an upper bound in that respect.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

from dflash_deploy.capacity.load_text import UserLoad
from dflash_deploy.capacity.service import Service
from dflash_deploy.capacity.simulation import Simulated, simulate

CURVE = (0.3, 0.6, 1.0, 1.3)
"""Shares of the most users of one replica at which the curve is simulated."""

STEP = 0.05
"""Share by which the numbers of users differ that are tried: closer ones differ less than two simulations do."""


@dataclass(frozen=True)
class Sized:
    """The replicas that a load needs.

    `users_of_one` is the most users that one replica serves within the goals, at most those of the load; with 0, no
    number of replicas meets them, `replicas` is `None`, and `figures` are those of a single user. Else `figures` are
    those of one replica with its share of the users. `curve` has other numbers of users on one replica.
    """

    service: Service
    users_of_one: int
    replicas: int | None
    figures: Simulated
    curve: tuple[Simulated, ...]

    @property
    def tokens_per_s(self) -> float:
        """Tokens per second of all replicas together."""
        return self.figures.tokens_per_s * (self.replicas or 1)


def size(service: Service, load: UserLoad) -> Sized:
    """The replicas of this service that a load needs."""
    known: dict[int, Simulated] = {}

    def simulated(users: int) -> Simulated:
        if users not in known:
            known[users] = simulate(service, load, users)
        return known[users]

    most = most_users(lambda users: simulated(users).meets(load), load.users)
    replicas = replicas_for(load.users, most)
    share = math.ceil(load.users / replicas) if replicas else 1
    # chance may say that fewer users wait longer: the figures of more users are the worst that can be expected
    figures = simulated(share) if most == 0 or simulated(share).meets(load) else simulated(most)
    places = sorted({max(round(part * (most or 4)), 1) for part in CURVE})
    return Sized(service, most, replicas, figures, tuple(simulated(users) for users in places))


def replicas_for(users: int, users_of_one: int) -> int | None:
    """The replicas for this many users; `None` if one replica serves not even one user within the goals."""
    return math.ceil(users / users_of_one) if users_of_one else None


def most_users(meets: Callable[[int], bool], limit: int) -> int:
    """The most users, up to `limit`, with which the goals are met, if fewer users always meet them too; 0 if none.

    Only numbers STEP apart are tried, in an order that does not depend on `limit`: so a higher limit never gives less.
    """
    good, bad = -1, 0
    while meets(_place(bad)):
        if _place(bad) >= limit:
            return limit
        good, bad = bad, 2 * bad + 1
    while bad - good > 1:
        middle = (good + bad) // 2
        if meets(_place(middle)):
            if _place(middle) >= limit:
                return limit
            good = middle
        else:
            bad = middle
    return min(_place(good), limit) if good >= 0 else 0


def _place(number: int) -> int:
    """The numbers that are tried: all up to 1 / STEP, then each a share of STEP above the one before."""
    every = round(1 / STEP)
    return number + 1 if number < every else round(every * (1 + STEP) ** (number - every + 1))


def drafts_pay_below(drafted: Service, plain: Service) -> int | None:
    """The least number of sequences at the same time at which drafts are no faster; `None` if they always are.

    While no prompt is computed: a prompt costs the same with drafts and without.
    """
    most_sequences = min(drafted.most_sequences, plain.most_sequences)
    return next(
        (count for count in range(1, most_sequences + 1) if drafted.token_s(count) >= plain.token_s(count)), None
    )
