"""Every error that a person can meet, and the exit code it ends with.

    DeployError                    1  something nobody foresaw
    ├── BadInput                   2  what was asked for makes no sense
    │   ├── UnknownProfile            --profile names no hardware profile
    │   ├── UnknownPair               --model or DFLASH_PAIR names no model pair, or a drafter
    │   ├── UnknownEngine             --engine or DFLASH_ENGINE names no engine release
    │   ├── CatalogRefused            a file of the catalog has a key or a value that means nothing
    │   ├── NotPossible               profile, model and engine do not go together
    │   ├── SettingsRefused           .env has a key or a value that means nothing
    │   └── NoDeployment              the directory holds no deployment
    ├── PreflightRefused           3  this machine cannot do it as it is now
    │   ├── PortTaken                 something else listens on the port
    │   ├── WeightsMissing            a model directory is absent or incomplete
    │   ├── EngineMissing             no engine is installed for the chosen runtime
    │   └── DirectoryBusy             another command holds the deployment directory
    ├── DownloadFailed             4  weights did not arrive, or are not what was asked for
    │   ├── HubUnreachable            the hub does not answer, or not sensibly
    │   ├── RepositoryMissing         there is no such repository or revision, or it is private
    │   ├── RepositoryGated           the hub hands it to accounts that accepted its terms
    │   ├── TokenRefused              the hub refuses the token
    │   ├── LockRefused               dflash.lock is damaged
    │   ├── NoRoom                    the disk has too little space, or cannot be written
    │   ├── FilesMissing              --offline, or --verify, and something is not there or not right
    │   └── ConversionFailed          weights could not be brought into another form
    ├── EngineNotReady             5  the engine could not be started or stopped, or did not become ready
    │   ├── EngineDied                its process or container ended
    │   ├── EngineStalled             it made no progress for too long
    │   └── RolledBack                the new settings did not answer; those that did last run again
    ├── SmokeTestFailed            6  a check of `test` failed
    │   └── KeyNotReplaced            after `keys rotate` the old key still opens the endpoint
    ├── BenchmarkMissed            7  a requirement of a benchmark was not met
    └── Interrupted              130  Ctrl-C

The same table stands in docs/exit-codes.md; a test compares them.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import IntEnum
from typing import ClassVar


class ExitCode(IntEnum):
    """What the process tells its caller."""

    DONE = 0
    UNEXPECTED = 1
    USAGE = 2
    PREFLIGHT = 3
    DOWNLOAD = 4
    NOT_READY = 5
    SMOKE_TEST = 6
    BENCHMARK = 7
    INTERRUPTED = 130


class DeployError(Exception):
    """Base of all errors shown as one line with a hint.

    `message` says what was seen, `hint` what to do next; `detail` is longer evidence, such as the tail of a log.
    """

    exit_code: ClassVar[ExitCode] = ExitCode.UNEXPECTED

    def __init__(self, message: str, *, hint: str, detail: str = "") -> None:
        super().__init__(message)
        self.message = message
        self.hint = hint
        self.detail = detail


class BadInput(DeployError):
    """Raised when a flag, an argument or a file says something that has no meaning."""

    exit_code = ExitCode.USAGE


class UnknownProfile(BadInput):
    """Raised when a profile is named that the catalog does not have, or none fits this machine."""


class UnknownPair(BadInput):
    """Raised when a model pair is named that the catalog does not have."""


class UnknownEngine(BadInput):
    """Raised when an engine is named that the catalog does not have."""


class CatalogRefused(BadInput):
    """Raised when a file of the catalog, packaged or one's own, is wrong."""


class NotPossible(BadInput):
    """Raised when what was asked for exists, and does not go together."""


class SettingsRefused(BadInput):
    """Raised when `.env` holds an unknown key or a value of the wrong kind."""


class NoDeployment(BadInput):
    """Raised when a verb needs a deployment and the directory holds none."""


class PreflightRefused(DeployError):
    """Raised before anything is started, when starting could not end well."""

    exit_code = ExitCode.PREFLIGHT


class PortTaken(PreflightRefused):
    """Raised when another process listens where the endpoint should."""


class WeightsMissing(PreflightRefused):
    """Raised when a model directory is absent, or lacks a file that the engine needs."""


class EngineMissing(PreflightRefused):
    """Raised when neither a container engine nor an installed vLLM can run the deployment."""


class DirectoryBusy(PreflightRefused):
    """Raised when another dflash-deploy command works on the same deployment directory."""


class DownloadFailed(DeployError):
    """Raised when weights could not be fetched or verified."""

    exit_code = ExitCode.DOWNLOAD


class HubUnreachable(DownloadFailed):
    """Raised when the hub does not answer, or answers with something else than it was asked for."""


class RepositoryMissing(DownloadFailed):
    """Raised when the hub has no such repository or revision, or does not show it to this token."""


class RepositoryGated(DownloadFailed):
    """Raised when a repository's terms have to be accepted first."""


class TokenRefused(DownloadFailed):
    """Raised when the hub refuses the token itself."""


class LockRefused(DownloadFailed):
    """Raised when dflash.lock cannot be read."""


class NoRoom(DownloadFailed):
    """Raised when the disk has too little space for what is to come, or cannot be written."""


class FilesMissing(DownloadFailed):
    """Raised when files are missing or wrong and nothing may be fetched."""


class ConversionFailed(DownloadFailed):
    """Raised when weights could not be brought into another form."""


class EngineNotReady(DeployError):
    """Raised when the runtime could not start or stop the engine, or it started and no generation came back.

    `failure` is the id of the fingerprint that it fits in catalog/failures.yaml, empty where none does; `fix` are the
    settings that the fingerprint says may be written to mend it.
    """

    exit_code = ExitCode.NOT_READY

    def __init__(
        self, message: str, *, hint: str, detail: str = "", failure: str = "", fix: Mapping[str, str] | None = None
    ) -> None:
        super().__init__(message, hint=hint, detail=detail)
        self.failure = failure
        self.fix = dict(fix or {})


class EngineDied(EngineNotReady):
    """Raised when the engine's process or container ended while it was waited for."""


class RolledBack(EngineNotReady):
    """Raised when new settings did not come up and those that worked before run again."""


class EngineStalled(EngineNotReady):
    """Raised when the engine wrote nothing and answered nothing for the stated time."""


class SmokeTestFailed(DeployError):
    """Raised when a check of `test` did not pass."""

    exit_code = ExitCode.SMOKE_TEST


class KeyNotReplaced(SmokeTestFailed):
    """Raised when the endpoint does not turn the old key away after `keys rotate`."""


class BenchmarkMissed(DeployError):
    """Raised when a measured figure stays below a required one."""

    exit_code = ExitCode.BENCHMARK


class Interrupted(DeployError):
    """Raised when a person ends the command before its end."""

    exit_code = ExitCode.INTERRUPTED

    def __init__(
        self, hint: str = "the same command goes on from here; `dflash-deploy down` stops an engine that was started"
    ) -> None:
        super().__init__("interrupted", hint=hint)
