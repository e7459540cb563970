"""Every error that the command reports, and the exit code it ends with.

    DeployError                    1  the base class
    ├── BadInput                   2  an option, an argument or a file is not valid
    │   ├── UnknownProfile            --profile names a hardware profile that does not exist, or none fits this machine
    │   ├── UnknownPair               --model or DFLASH_PAIR names an unknown model, or a drafter
    │   ├── UnknownEngine             --engine or DFLASH_ENGINE names an unknown engine release
    │   ├── UnknownRecipe             --recipe names a recipe that the profile does not have
    │   ├── CatalogRefused            a catalog file has an unknown key or an invalid value
    │   ├── FleetRefused              fleet.yaml is missing or not valid
    │   ├── NotPossible               profile, model and engine do not work together
    │   ├── SettingsRefused           .env has an unknown key or an invalid value
    │   ├── FileRefused               a file cannot be read
    │   ├── FileMissing               a file does not exist
    │   ├── FileDenied                this user may not read a file
    │   ├── FileInvalid               a file is not a regular file, is too large, or is not text
    │   └── NoDeployment              the directory contains no deployment
    ├── PreflightRefused           3  this machine cannot run the deployment in its current state
    │   ├── PortTaken                 another process listens on the port
    │   ├── WeightsMissing            a model directory is missing or incomplete
    │   ├── EngineMissing             no engine is installed for the chosen runtime
    │   └── DirectoryBusy             another command uses the deployment directory
    ├── DownloadFailed             4  a download failed, or the files are not the expected ones
    │   ├── HubUnreachable            the Hugging Face Hub does not respond, or the response is not valid
    │   ├── RepositoryMissing         the repository or revision does not exist, or it is private
    │   ├── RepositoryGated           the repository requires an account that accepted its terms
    │   ├── TokenRefused              the Hub rejects the token
    │   ├── LockRefused               dflash.lock is damaged
    │   ├── NoRoom                    the disk has too little free space, or is not writable
    │   ├── FilesMissing              --offline or --verify: a file is missing or damaged
    │   └── ConversionFailed          weights could not be converted
    ├── EngineNotReady             5  the engine could not be started or stopped, or did not become ready
    │   ├── EngineDied                its process or container exited
    │   │   └── EngineAsked           another program ended it while it started
    │   ├── EngineStalled             it made no progress for too long
    │   ├── EngineStopped             `up` stopped it before it took the last of the machine's memory
    │   └── RolledBack                the new settings failed; the last working settings run again
    ├── SmokeTestFailed            6  a check of `test` failed
    │   └── KeyNotReplaced            after `keys rotate` the endpoint still accepts the old key
    ├── Outdated                   6  `upgrade --check` found something newer
    ├── BenchmarkMissed            7  a benchmark requirement was not met
    ├── HostFailed                 1  a command of `fleet` failed on a host; the code is the worst of the hosts
    ├── Interrupted              130  Ctrl-C
    └── Defect                     1  a defect of dflash-deploy, with lines to report it

docs/reference/exit-codes.md has the same codes; a test compares them.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import IntEnum
from pathlib import Path

# The pages that hints name; the installed package does not have them.
DOCS = "https://github.com/dflash-deploy/dflash-deploy/blob/main/docs"

# The site of the documents (`site_url` of mkdocs.yml), which also has the pages that repeat the program.
SITE = "https://dflash-deploy.github.io/dflash-deploy"


def where_explained(*failures: str) -> str:
    """The ids of known failures, and the address of the first one in the list of them."""
    return f"{', '.join(failures)}, see {SITE}/reference/failures.html#{failures[0]}"


class ExitCode(IntEnum):
    """The exit status of the process."""

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
    """Base class of all errors; each is shown as one line with a hint.

    `message` says what failed and with which value, `hint` what to do next. `detail` is longer evidence, such as the
    end of a log.
    """

    exit_code: ExitCode = ExitCode.UNEXPECTED

    def __init__(self, message: str, *, hint: str, detail: str = "") -> None:
        # it may quote a file or an answer; line ends in it would look like lines of this program
        self.message = " ".join(message.splitlines())
        super().__init__(self.message)
        self.hint = hint
        self.detail = detail


class BadInput(DeployError):
    """Raised when an option, an argument or a file is not valid."""

    exit_code = ExitCode.USAGE


class UnknownProfile(BadInput):
    """Raised when the catalog does not contain the named profile, or no profile fits this machine."""


class UnknownPair(BadInput):
    """Raised when the catalog does not contain the named model."""


class UnknownEngine(BadInput):
    """Raised when the catalog does not contain the named engine release."""


class UnknownRecipe(BadInput):
    """Raised when a profile does not have the named recipe."""


class CatalogRefused(BadInput):
    """Raised when a file of the packaged or a custom catalog is not valid."""


class FleetRefused(BadInput):
    """Raised when `fleet.yaml` is missing or not valid."""


class NotPossible(BadInput):
    """Raised when profile, model and engine exist but do not work together."""


class SettingsRefused(BadInput):
    """Raised when `.env` holds an unknown key or a value of the wrong kind."""


class FileRefused(BadInput):
    """Raised when a file cannot be read, as from a disk that fails."""


class FileMissing(FileRefused):
    """Raised when a file does not exist."""


class FileDenied(FileRefused):
    """Raised when this user may not read a file."""


class FileInvalid(FileRefused):
    """Raised when a file is a directory, a FIFO or a device, is too large, or is not UTF-8 text."""


class NoDeployment(BadInput):
    """Raised when a command needs a deployment and the directory contains none."""


class PreflightRefused(DeployError):
    """Raised before anything starts, when the start would fail."""

    exit_code = ExitCode.PREFLIGHT


class PortTaken(PreflightRefused):
    """Raised when another process listens on the address of the endpoint."""


class WeightsMissing(PreflightRefused):
    """Raised when a model directory is missing, or lacks a file that the engine needs."""


class EngineMissing(PreflightRefused):
    """Raised when neither Docker nor an installed vLLM can run the deployment."""


class DirectoryBusy(PreflightRefused):
    """Raised when another dflash-deploy command uses the same deployment directory."""


class DownloadFailed(DeployError):
    """Raised when weights could not be downloaded or verified."""

    exit_code = ExitCode.DOWNLOAD


class HubUnreachable(DownloadFailed):
    """Raised when the Hugging Face Hub does not respond, or its response is not valid."""


class RepositoryMissing(DownloadFailed):
    """Raised when the repository or revision does not exist on the Hub, or the token has no access to it."""


class RepositoryGated(DownloadFailed):
    """Raised when the terms of a repository must be accepted first."""


class TokenRefused(DownloadFailed):
    """Raised when the Hub rejects the token itself."""


class LockRefused(DownloadFailed):
    """Raised when dflash.lock cannot be read."""


class NoRoom(DownloadFailed):
    """Raised when the disk has too little free space, or is not writable."""


class FilesMissing(DownloadFailed):
    """Raised when files are missing or damaged and downloads are not allowed."""


class ConversionFailed(DownloadFailed):
    """Raised when weights could not be converted to another format."""


@dataclass(frozen=True)
class Fixed:
    """What `--fix` changed in `.env`."""

    failure: str
    """Id of the failure that it fixed, as in docs/reference/failures.md."""
    changes: Mapping[str, str]
    """The settings that it wrote, with their new values."""
    before: Path
    """Path of `.env` as it was before."""


class EngineNotReady(DeployError):
    """Raised when the runtime could not start or stop the engine, or the engine started and generated no token.

    `failure` is the id of the matching fingerprint in catalog/failures, empty if none matches. `fix` are the
    settings that this fingerprint allows `up --fix` to write, `fixed` those that it wrote before this failure.
    """

    exit_code = ExitCode.NOT_READY
    fixed: Fixed | None = None

    def __init__(
        self, message: str, *, hint: str, detail: str = "", failure: str = "", fix: Mapping[str, str] | None = None
    ) -> None:
        super().__init__(message, hint=hint, detail=detail)
        self.failure = failure
        self.fix = dict(fix or {})


class EngineDied(EngineNotReady):
    """Raised when the engine's process or container exits before the engine is ready."""


class EngineAsked(EngineDied):
    """Raised when another program ends the engine while it starts, which says nothing about the settings."""


class RolledBack(EngineNotReady):
    """Raised when the engine fails to start with new settings and the last working settings run again."""


class EngineStalled(EngineNotReady):
    """Raised when the engine logs nothing and answers nothing for the stated time."""


class EngineStopped(EngineNotReady):
    """Raised when an engine that loads is stopped because the machine would freeze: its unified memory is used up."""


class SmokeTestFailed(DeployError):
    """Raised when a check of `test` fails."""

    exit_code = ExitCode.SMOKE_TEST


class KeyNotReplaced(SmokeTestFailed):
    """Raised when the endpoint still accepts the old key after `keys rotate`."""


class Outdated(DeployError):
    """Raised when `upgrade --check` finds something newer than the deployment has."""

    exit_code = ExitCode.SMOKE_TEST


class BenchmarkMissed(DeployError):
    """Raised when a measured value is below the required one."""

    exit_code = ExitCode.BENCHMARK


class HostFailed(DeployError):
    """Raised when a command of `fleet` failed on a host. `code` is the worst exit code of the hosts."""

    def __init__(self, message: str, hint: str, code: int) -> None:
        super().__init__(message, hint=hint)
        self.exit_code = ExitCode(code)


class Interrupted(DeployError):
    """Raised when the user interrupts the command."""

    exit_code = ExitCode.INTERRUPTED

    def __init__(
        self, hint: str = "run the same command to continue; `dflash-deploy down` stops an engine that was started"
    ) -> None:
        super().__init__("interrupted", hint=hint)


class Defect(DeployError):
    """Raised for an exception that no other class covers: a defect of dflash-deploy.

    `cause` is the exception, `report` the lines for an issue, without secrets; empty until they are known.
    """

    def __init__(self, message: str, *, hint: str, detail: str = "", cause: BaseException) -> None:
        super().__init__(message, hint=hint, detail=detail)
        self.cause = cause
        self.report = ""
