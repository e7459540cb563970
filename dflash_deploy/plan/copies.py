"""Data parallelism: how the GPUs of a machine are divided into copies of the engine, and why.

A copy holds the whole model, on one GPU or split over a few. The copies share one port, key, log and metrics page.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from dflash_deploy.catalog.hardware import Profile
from dflash_deploy.catalog.models import ModelPair
from dflash_deploy.catalog.releases import EngineRelease
from dflash_deploy.host.gpu import IN_ORDER, VISIBLE
from dflash_deploy.host.machine import HostFacts
from dflash_deploy.plan.choose import gpu_fits
from dflash_deploy.plan.memory import SHORT_CONTEXT
from dflash_deploy.plan.result import Choice, Decision, Goal, decided
from dflash_deploy.plan.sizes import USUAL_SEQUENCES, fits_at_all, machine_settings
from dflash_deploy.plan.speed import predict
from dflash_deploy.serve.settings import Settings

if TYPE_CHECKING:
    from dflash_deploy.serve.field import Field


@dataclass(frozen=True)
class Copies:
    """`count` copies of the engine on `gpus` GPUs each (0 on processors), and why."""

    count: int
    gpus: int
    origin: str
    reason: str


def copies_of(
    profile: Profile,
    pair: ModelPair,
    engine: EngineRelease,
    facts: HostFacts,
    choice: Choice,
    *,
    memory: int,
    goal: Goal | None,
) -> Copies | None:
    """The copies that `.env` asks for, or that have more tokens/s with the goal `throughput`; `None`: one engine.

    `memory` is that of one GPU, in bytes. vLLM divides the experts of a mixture over all copies, which then wait for
    each other: such a model gets copies only if `.env` asks for them.
    """
    if profile.hardware.machines > 1 or not engine.kind.knows(Settings.data_parallel_size):
        return None
    asked, size = _written(choice, Settings.data_parallel_size), _written(choice, Settings.tensor_parallel_size)
    available = len(gpus_of(profile, facts)) or profile.match.gpus
    if asked is not None and asked > 1:
        wanted = size or machine_settings(profile, engine).tensor_parallel_size or 1
        each = wanted if asked * wanted <= available else max(1, available // asked)
        gpus = each if profile.match.gpus else 0
        return Copies(asked, gpus, ".env", Ways(profile, pair, engine, asked, gpus, choice).reason)
    if asked is not None or goal != "throughput" or profile.match.gpus < 2 or pair.shape.experts is not None:
        return None
    length = min(choice.max_model_len or SHORT_CONTEXT, pair.shape.context)
    gpus = size or _fewest_gpus(profile, pair, engine, available, memory, length)
    count, origin = available // gpus, f"--goal {goal}"
    if count < 2:
        return None
    ways = Ways(profile, pair, engine, count, gpus, choice)
    return Copies(count, gpus, origin, ways.reason) if ways.faster else Copies(1, available, origin, ways.against)


def gpus_of_one(profile: Profile, choice: Choice) -> int | None:
    """The GPUs of one copy, if `.env` makes them fewer than the profile's; else `None`."""
    if profile.hardware.machines > 1:
        return None
    asked, size = _written(choice, Settings.data_parallel_size), _written(choice, Settings.tensor_parallel_size)
    each = size or profile.gpus // (asked or 1)
    return each if 0 < each < profile.gpus else None


def decisions_of(copies: Copies, profile: Profile, facts: HostFacts) -> Iterator[Decision]:
    """The settings that divide a machine into copies."""
    yield decided(Settings.data_parallel_size, copies.count, copies.origin, copies.reason)
    if not copies.gpus or copies.count == 1:
        return
    reason = f"the GPUs of each of {copies.count} copies"
    yield decided(Settings.tensor_parallel_size, copies.gpus, Settings.data_parallel_size.name, reason)
    used = gpus_of(profile, facts)[: copies.count * copies.gpus]
    if used and len(used) != profile.match.gpus:
        yield Decision(VISIBLE, ",".join(map(str, used)), "hardware", "the GPUs of all copies")
        yield Decision(IN_ORDER, "PCI_BUS_ID", "hardware", "the order of nvidia-smi's numbers")


def gpus_of(profile: Profile, facts: HostFacts) -> tuple[int, ...]:
    """The numbers of all GPUs of this machine that are of the profile's kind."""
    return tuple(gpu.index for gpu in facts.gpus if gpu_fits(profile.match, gpu))


def _written(choice: Choice, field: Field[Any]) -> int | None:
    """The number in `.env`; `None` if there is none, or one that the settings refuse."""
    text = choice.edited.get(field.name, "").strip()
    return int(text) if text.isdecimal() and len(text) < 4 and int(text) else None


def _fewest_gpus(
    profile: Profile, pair: ModelPair, engine: EngineRelease, available: int, memory: int, length: int
) -> int:
    """The fewest GPUs that hold the model with a context of this length: one, or a group that divides the machine."""
    for gpus in range(1, available):
        if available % gpus == 0 and fits_at_all(profile, pair, engine, memory=memory, gpus=gpus, length=length):
            return gpus
    return available


@dataclass(frozen=True)
class Ways:
    """`count` copies on `gpus` GPUs each, and one engine split over all of them, with the expected figures of both."""

    profile: Profile
    pair: ModelPair
    engine: EngineRelease
    count: int
    gpus: int
    choice: Choice

    @property
    def reason(self) -> str:
        """Why copies, with the expected figures of both ways."""
        sizes = f"{Settings.max_num_seqs} is that of each"
        if not self.gpus:
            return f"{self.count} copies of the engine share the cores and the memory of this machine; {sizes}"
        return (
            f"each of {self.count} copies has the whole model on {self._one} and does not wait for the others: more "
            f"tokens/s for many requests; {sizes}. Expected: {self._copied:.0f} tokens/s for {self._requests} "
            f"requests, {self._figure(1, self.gpus):.0f} for one; split over {self._whole} GPUs: {self._split:.0f}, "
            f"less the time in which they wait, and {self._figure(1, self._whole):.0f}. For single requests set "
            f"{Settings.data_parallel_size}=1 and {Settings.tensor_parallel_size}={self._whole}"
        )

    @property
    def against(self) -> str:
        """Why no copies, with the expected figures of both ways."""
        return (
            f"split over {self._whole} GPUs: {self._split:.0f} tokens/s are expected at concurrency {self._requests}, "
            f"and {self._copied:.0f} with {self.count} copies on {self._one} each"
        )

    @property
    def faster(self) -> bool:
        """Whether the speed model expects more tokens/s of the copies."""
        return self._copied >= self._split

    @property
    def _one(self) -> str:
        return "one GPU" if self.gpus == 1 else f"{self.gpus} GPUs"

    @property
    def _whole(self) -> int:
        return self.count * self.gpus

    @property
    def _requests(self) -> int:
        """Those of `--concurrency`, else as many as all copies serve."""
        chosen = machine_settings(self.profile, self.engine)
        return self.choice.concurrency or (chosen.max_num_seqs or USUAL_SEQUENCES) * self.count

    @property
    def _copied(self) -> float:
        used = min(self.count, self._requests)
        return self._figure(-(-self._requests // used), self.gpus, used)

    @property
    def _split(self) -> float:
        return self._figure(self._requests, self._whole)

    def _figure(self, concurrency: int, gpus: int, copies: int = 1) -> float:
        """Tokens/s of `copies`, each with this concurrency; 0 if the model has no figure."""
        chosen, most = machine_settings(self.profile, self.engine), self.pair.drafter.most_draft_tokens
        drafts = min(chosen.dflash_num_spec_tokens or most, most) if self.choice.drafter else 0
        speed = predict(
            self.profile, self.pair, concurrency=concurrency, draft_tokens=drafts, gpus=gpus, engine=self.engine
        )
        return speed.of_copies(copies).expected("dflash") if speed else 0.0
