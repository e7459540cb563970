"""`fleet accept`: the keys that the engines of this machine accept while a fleet adds, replaces or revokes one."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from dflash_deploy.deployment import Deployment, locked
from dflash_deploy.deployment.keys_file import accept_also
from dflash_deploy.errors import KeyNotReplaced
from dflash_deploy.fleet.wanted_keys import WantedKeys, read_wanted
from dflash_deploy.operations.named_keys import answered_status
from dflash_deploy.operations.reporter import SILENT, Reporter
from dflash_deploy.planning import plan_to_stop
from dflash_deploy.runtime import runtime_for
from dflash_deploy.startup import is_up


@dataclass(frozen=True)
class AcceptedKeys:
    """What the engines answer to each key, by its name. `running`: whether they run."""

    running: bool
    answers: tuple[tuple[str, int | None], ...] = ()

    def document(self) -> dict[str, object]:
        """The `data` of `fleet accept --json`; no key is in it."""
        answers = [{"name": name, "status": status} for name, status in self.answers]
        return {"state": "accepted" if self.running else "stopped", "answers": answers}


def fleet_accept(directory: Path, asked: bytes, *, reporter: Reporter = SILENT) -> AcceptedKeys:
    """Let the engines accept keys beside those of `.env`, without a restart, and prove it.

    `asked` is `WantedKeys.document` of the terminal. Raises BadInput if it is not, NoDeployment, DirectoryBusy, and
    KeyNotReplaced if a running engine answers a key with another status.
    """
    keys = read_wanted(asked)
    with locked(directory, "fleet accept", check=False) as before:
        deployment = _written(before, keys)
        accept_also(deployment, keys.also)
        if not is_up(runtime_for(deployment, plan_to_stop(deployment))):
            reporter.note("no engine runs here: it gets the keys when it starts")
            return AcceptedKeys(False)
        answers = []
        for proof in keys.proofs:
            status = answered_status(deployment, proof.key, {proof.status})
            if status not in {None, proof.status}:
                raise KeyNotReplaced(
                    f"the engine answers the key `{proof.key.name}` with {status}, expected {int(proof.status)}",
                    hint="the engine started before keys could change: `dflash-deploy fleet restart`",
                )
            answers.append((proof.key.name, status))
    return AcceptedKeys(True, tuple(answers))


def _written(deployment: Deployment, keys: WantedKeys) -> Deployment:
    """Write the keys that `.env` and `.env.last` shall have; return the deployment read again."""
    if keys.owner is not None and keys.owner.reveal() != deployment.key.reveal():
        deployment = deployment.with_new_key(keys.owner)
    if keys.further is not None and keys.further != deployment.further_keys:
        deployment = deployment.with_further_keys(keys.further)
    # `fleet up` may have written `.env` before, and kept the one with the old keys
    deployment.keys_into_last()
    return deployment
