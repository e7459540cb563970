"""How many replicas a load needs: the load, the service of one engine, a queueing simulation, and the decision."""

from __future__ import annotations

from typing import TYPE_CHECKING

from dflash_deploy.lazy import lazily

if TYPE_CHECKING:
    from dflash_deploy.capacity.expected import expected_service
    from dflash_deploy.capacity.load_text import UserLoad, parse_load
    from dflash_deploy.capacity.measured import measured_service
    from dflash_deploy.capacity.replicas import Sized, drafts_pay_below, size
    from dflash_deploy.capacity.service import Service
    from dflash_deploy.capacity.simulation import Simulated, simulate
else:
    __getattr__ = lazily(
        __name__,
        {
            ".expected": ("expected_service",),
            ".load_text": ("UserLoad", "parse_load"),
            ".measured": ("measured_service",),
            ".replicas": ("Sized", "drafts_pay_below", "size"),
            ".service": ("Service",),
            ".simulation": ("Simulated", "simulate"),
        },
    )

__all__ = [
    "Service",
    "Simulated",
    "Sized",
    "UserLoad",
    "drafts_pay_below",
    "expected_service",
    "measured_service",
    "parse_load",
    "simulate",
    "size",
]
