"""The directory of a deployment: its files and its last working settings.

Hints, and commands that a report names, give the place of a deployment as the current directory sees it.
`.dflash/last-good.env` has the settings of the last successful start. It has no secrets: the API key is always the one
of `.env`.
"""

from __future__ import annotations

import hashlib
import os
import re
import shlex
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import cached_property
from itertools import islice
from pathlib import Path

from dflash_deploy.deployment import dotenv
from dflash_deploy.deployment.dotenv import names_a_secret, secrets_in, whole_word, with_keys_of
from dflash_deploy.deployment.files import PRIVATE, STATE, write_atomically, write_if_changed
from dflash_deploy.errors import BadInput, FileRefused, NoDeployment, SettingsRefused
from dflash_deploy.intake.documents import ProjectState, read_state, read_state_text
from dflash_deploy.intake.files import is_file, read_beginning, read_text
from dflash_deploy.plan.command import in_home
from dflash_deploy.redact import Redactor, Secret, generate_key
from dflash_deploy.serve.api_keys import KEY, ApiKey, keys_in
from dflash_deploy.serve.engines import DEFAULT
from dflash_deploy.serve.refusal import Refused
from dflash_deploy.serve.secrets import SECRET_NAMES
from dflash_deploy.serve.settings import Settings

MOST_ENTRIES = 1000  # entries of a directory that are examined
MOST_NAMED = 3  # deployments that a hint names
CREATE = "create one with `dflash-deploy init`, or `dflash-deploy up --yes`"
AT_HOME = Path("~/dflash")  # where `init` writes in a directory that has other files


def hint_without_deployment(directory: Path) -> str:
    """What to do in a directory without a deployment: restore its `.env`, name one that is near, or create one."""
    if (directory / ".dflash").is_dir():
        here = there(directory)
        return (
            f"its .env is missing: put it back, or write another one with `dflash-deploy init{here}`; "
            f"then `dflash-deploy restart{here}` gives the engine its key"
        )
    near = [dir_option(place) for place in _near(directory)]
    found = [*near, *(f"--dir {shlex.quote(place.name)}" for place in deployments_at_home())][:MOST_NAMED]
    if not found:
        return CREATE
    options = " or ".join(f"`{one}`" for one in found)
    return f"name one with {options}, or {CREATE}"


def deployments_at_home() -> list[Path]:
    """The deployments below `~/dflash`; the one that `init` or `up` touched last is the first."""
    with suppress(OSError, RuntimeError):
        places = filter(_has_deployment, islice(AT_HOME.expanduser().iterdir(), MOST_ENTRIES))
        return sorted(places, key=_touched, reverse=True)
    return []


def _touched(directory: Path) -> float:
    """When `.env` was written, or the journal was: a start is an event."""
    files = (directory / ".env", directory / STATE / "journal.jsonl")
    return max((file.stat().st_mtime for file in files if file.exists()), default=0.0)


def _near(directory: Path) -> Iterator[Path]:
    """The directory above and those below, if they have a deployment; in the order of their names."""
    with suppress(OSError):
        yield from filter(_has_deployment, directory.parents[:1])
        yield from filter(_has_deployment, sorted(islice(directory.iterdir(), MOST_ENTRIES)))


def _has_deployment(place: Path) -> bool:
    """Return whether a directory has settings and the state of a deployment; other projects have a `.env` too."""
    with suppress(OSError):
        return (place / ".env").is_file() and (place / ".dflash").is_dir()
    return False


def dir_option(directory: Path) -> str:
    """Return `--dir DIRECTORY` as it is written in the current directory; a deployment there needs `--dir .`."""
    here, place = (Path(os.path.realpath(path)) for path in (Path(), directory))
    return f"--dir {shlex.quote(str(place.relative_to(here) if place.is_relative_to(here) else directory))}"


def there(directory: Path) -> str:
    """Return what a command needs to work on a directory: ` --dir DIRECTORY`, nothing in the directory itself."""
    option = dir_option(directory)
    return "" if option == "--dir ." else f" {option}"


PROJECT_FILE = "project.json"  # the file in `.dflash/` with the name of the Compose project


def place_of(state: Path) -> str:
    """A directory by its device and inode: the same when it is renamed, another one for a copy; empty if missing."""
    try:
        found = state.stat()
    except OSError:
        return ""
    return f"{found.st_dev}:{found.st_ino}"


@dataclass(frozen=True)
class Deployment:
    """A deployment directory, made absolute. `values` and `secrets` read `.env` once per command.

    `settings` is a file to read settings from instead of `.env`. Secrets always come from `.env`. `text` is the content
    that `.env` will have.
    """

    directory: Path
    settings: Path | None = None
    text: str | None = None

    def __post_init__(self) -> None:
        # the engine has another working directory, and Compose resolves relative paths differently
        try:
            object.__setattr__(self, "directory", self.directory.absolute())
        except FileNotFoundError:
            raise BadInput(
                "the current directory no longer exists",
                hint="change to another one, or name the deployment with --dir",
            ) from None

    @property
    def env_file(self) -> Path:
        """The file with all settings and secrets; mode 0600."""
        return self.directory / ".env"

    @property
    def last_env_file(self) -> Path:
        """The previous `.env`, kept when a command changes settings, with the API keys of now; mode 0600."""
        return self.directory / ".env.last"

    @property
    def compose_file(self) -> Path:
        """The Compose file that `render` generates."""
        return self.directory / "compose.yaml"

    @property
    def override_file(self) -> Path:
        """The user's additions to Compose, which no command writes."""
        return self.directory / "compose.override.yaml"

    @property
    def entry(self) -> Path:
        """The catalog entry of a model that the catalog does not have."""
        return self.directory / "model.yaml"

    @property
    def state(self) -> Path:
        """`.dflash/`: logs, run state, the image's build context."""
        return self.directory / ".dflash"

    @property
    def option(self) -> str:
        """What a command needs to work on this deployment."""
        return there(self.directory)

    @property
    def project_name(self) -> str:
        """The Compose project name: the rendered one, also after the directory was renamed, or a new one.

        A copy of a directory is a project of its own.
        """
        known = read_state(self.state / PROJECT_FILE, ProjectState)
        return known.name if known is not None and known.place == place_of(self.state) else self._new_project_name

    @property
    def _new_project_name(self) -> str:
        """The directory's name, and a hash of its path to keep it unique."""
        # a path may have bytes that are not UTF-8
        path = os.fsencode(self.directory.resolve())
        slug = re.sub(r"[^a-z0-9]+", "-", self.directory.resolve().name.lower()).strip("-") or "deployment"
        return f"dflash-{slug[:30]}-{hashlib.sha256(path).hexdigest()[:6]}"

    def path(self, written: str) -> Path:
        """Resolve a path of `.env` as Compose does: `~` is the home directory, relative paths start here."""
        return self.directory / in_home(Path(written))

    def keep_project_name(self) -> None:
        """Write the name of the project, so that it stays if the directory is renamed."""
        known = ProjectState(name=self.project_name, place=place_of(self.make_state()))
        write_if_changed(self.state / PROJECT_FILE, f"{known.model_dump_json()}\n", mode=PRIVATE)

    def make_state(self) -> Path:
        """Create `.dflash/` with mode 0700 if it does not exist, and return it."""
        self.state.mkdir(parents=True, exist_ok=True, mode=0o700)
        return self.state

    def is_private(self) -> bool:
        """Return whether only its owner can read `.env`."""
        return self.env_file.stat().st_mode & 0o077 == 0

    def exists(self) -> bool:
        """Return whether the directory contains a deployment. Raises FileRefused if `.env` is not a file."""
        return is_file(self.env_file)

    @classmethod
    def existing(cls, directory: Path, *, check: bool = True) -> Deployment:
        """Return the deployment in a directory. `check`: refuse unknown settings, which stopping and reading ignore.

        Raises NoDeployment if there is none, FileRefused if `.env` cannot be read, SettingsRefused if it has an unknown
        setting or a line that cannot be parsed.
        """
        deployment = cls(directory)
        if not deployment.exists():
            said = f"no deployment found in {deployment.directory}"
            raise NoDeployment(said, hint=hint_without_deployment(deployment.directory))
        if check:
            dotenv.check_lines(deployment._read())
            dotenv.check_keys(deployment._lines)
        return deployment

    @classmethod
    def started(cls, directory: Path) -> Deployment:
        """Return the deployment in a directory, also one whose `.env` is missing: its engine may still run.

        Raises NoDeployment for a directory without `.dflash/` and `.env`.
        """
        deployment = cls(directory)
        return deployment if deployment.state.is_dir() else cls.existing(directory, check=False)

    def write_env(self, values: Mapping[str, str], engine: str = DEFAULT) -> None:
        """Write `.env` for an engine, created with mode 0600."""
        self.directory.mkdir(parents=True, exist_ok=True)
        place = self._owned() if self.env_file.exists() else self.env_file
        write_atomically(place, dotenv.fill_template(values, engine), mode=PRIVATE)

    def with_new_key(self, chosen: Secret | None = None) -> Deployment:
        """Write a new key to `.env` atomically, keep everything else, and return the deployment read again.

        The key is `chosen`, or a random one.
        The old key is replaced wherever the file has it, as in DFLASH_API_KEYS, where it would stay valid. Raises
        SettingsRefused if the file belongs to another user: replacing it would change its owner.
        """
        name, old, new = Settings.vllm_api_key.name, self.key.reveal(), (chosen or generate_key()).reveal()
        changed = dotenv.replace_value(self._read(), name, new)
        return self._with_keys(whole_word(old).sub(new, changed) if KEY.fullmatch(old) else changed)

    def with_further_keys(self, keys: Sequence[ApiKey]) -> Deployment:
        """Write DFLASH_API_KEYS to `.env` atomically, keep everything else, and return the deployment read again.

        Raises SettingsRefused as `with_new_key` does.
        """
        entries = ",".join(key.written() for key in keys)
        return self._with_keys(dotenv.replace_value(self._read(), Settings.dflash_api_keys.name, entries))

    @property
    def settings_with_the_key(self) -> tuple[str, ...]:
        """The names of other settings whose value contains the API key."""
        key, name = self.key.reveal(), Settings.vllm_api_key.name
        if not KEY.fullmatch(key):
            return ()
        word = whole_word(key)
        return tuple(other for other, value in self._lines.items() if other != name and word.search(value))

    def with_values(
        self, changes: Mapping[str, str], why: Sequence[str] = (), empty: Collection[str] = ()
    ) -> Deployment:
        """Write changed settings to `.env` and keep the previous file as `.env.last`; return the deployment read again.

        Those of `empty` stay in it without a value. `why` is written as comments before the first setting with a value,
        and replaces earlier comments of this kind. Raises SettingsRefused as `with_new_key` does, and if a value cannot
        be written.
        """
        before, changed = self._read(), self.text_with(changes, empty)
        first = next((name for name, value in changes.items() if value), None)
        if why and first:
            changed = dotenv.with_comments(changed, first, [self.redact(line) for line in why])
        self._owned()
        write_atomically(self.last_env_file, before, mode=PRIVATE)
        return self._with(changed)

    def text_with(self, changes: Mapping[str, str], empty: Collection[str] = ()) -> str:
        """The text of `.env` with changed settings; one without a value is removed, unless it is one of `empty`."""
        text = self._read()
        for name, value in changes.items():
            written = value or name in empty
            text = dotenv.replace_value(text, name, value) if written else dotenv.without(text, name)
        return text

    def keep_last(self, text: str) -> None:
        """Copy `.env` to `.env.last` before `text` replaces it. Raises the errors of reading `.env`.

        A command that is repeated after a kill has replaced it already, and keeps what was there before the first run.
        """
        before = self._read()
        if before != text:
            write_atomically(self.last_env_file, before, mode=PRIVATE)

    def keys_into_last(self, text: str | None = None) -> None:
        """Give `.env.last` the keys of `.env`, or of `text`: copied back, it must not make an old key valid again.

        A file that is missing or damaged stays as it is.
        """
        with suppress(FileRefused, SettingsRefused):
            last = read_text(self.last_env_file, limit=dotenv.MOST_BYTES)
            aligned = with_keys_of(self._read() if text is None else text, last)
            if aligned != last:
                write_atomically(self.last_env_file, aligned, mode=PRIVATE)

    def _with_keys(self, text: str) -> Deployment:
        """Replace `.env`, and before that the keys of `.env.last`; return the deployment read again."""
        self._owned()
        self.keys_into_last(text)
        return self._with(text)

    def _with(self, text: str) -> Deployment:
        """Replace `.env` and return the deployment read again."""
        write_atomically(self._owned(), text, mode=PRIVATE)
        return Deployment(self.directory)

    def _owned(self) -> Path:
        """Return the file behind `.env`: replacing a symlink would keep the old file."""
        place = self.env_file.resolve()
        if os.geteuid() not in {0, place.stat().st_uid}:
            raise SettingsRefused(f"{place} belongs to another user", hint="run the command as the owner of the file")
        return place

    @cached_property
    def _lines(self) -> Mapping[str, str]:
        # the engine reads blanks as empty
        lines = {name: value.strip() for name, value in dotenv.parse(self._read()).items()}
        if self.settings is None:
            return lines
        secrets = {name: lines.get(name, "") for name in SECRET_NAMES}
        return dotenv.parse(read_text(self.settings, limit=dotenv.MOST_BYTES)) | secrets

    def _read(self) -> str:
        """Return the text of `.env` with its line endings."""
        return read_text(self.env_file, limit=dotenv.MOST_BYTES) if self.text is None else self.text

    @property
    def values(self) -> Mapping[str, str]:
        """The settings of `.env` without its secrets."""
        return {name: value for name, value in self._lines.items() if name not in SECRET_NAMES}

    @property
    def secrets(self) -> Mapping[str, Secret]:
        """The secrets of `.env`, by name."""
        return {name: Secret(self._lines.get(name, "")) for name in SECRET_NAMES}

    @property
    def secrets_of_a_start(self) -> tuple[tuple[str, str], ...]:
        """The secrets that an engine keeps from its start to its end, by name: all but the further keys."""
        further = Settings.dflash_api_keys.name
        return tuple((name, secret.reveal()) for name, secret in sorted(self.secrets.items()) if name != further)

    @property
    def key(self) -> Secret:
        """The API key of the endpoint."""
        return self.secrets[Settings.vllm_api_key.name]

    @property
    def further_keys(self) -> tuple[ApiKey, ...]:
        """The keys of DFLASH_API_KEYS. Raises SettingsRefused if an entry is not valid; the message shows no key."""
        try:
            return keys_in(self.secrets[Settings.dflash_api_keys.name].reveal())
        except Refused as refusal:
            raise SettingsRefused(f".env: {refusal.message}", hint=refusal.hint) from None

    @property
    def key_is_sound(self) -> bool:
        """Whether the API key is set, long enough, and read the same by every reader of `.env`."""
        return KEY.fullmatch(self.key.reveal()) is not None

    @cached_property
    def known_secrets(self) -> tuple[Secret, ...]:
        """Everything that must not be shown: what may be a secret in `.env` and `.env.last`, however damaged they are.

        Empty for files that cannot be read.
        """
        found: list[Secret] = []
        for file in (self.env_file, self.last_env_file):
            with suppress(FileRefused):
                text = read_beginning(file, dotenv.MOST_BYTES)
                found += secrets_in(text)
                found += (Secret(value.strip()) for name, value in dotenv.parse(text).items() if names_a_secret(name))
        return tuple(found)

    @cached_property
    def redact(self) -> Redactor:
        """A redactor of this deployment's secrets."""
        return Redactor(self.known_secrets)


LAST_GOOD = "last-good.env"
# File in `.dflash/` that exists while the engine runs with the last working settings instead of those of `.env`.
RESTORED = "runs-last-good"


@dataclass(frozen=True)
class Change:
    """A changed setting: its value in the last working settings and in `.env`; empty if it is not set."""

    name: str
    good: str
    now: str

    def __str__(self) -> str:
        return f"{self.name}: {self.good or '(empty)'} -> {self.now or '(empty)'}"


def remember_good(deployment: Deployment) -> None:
    """Save the settings of `.env` as the last working settings."""
    lines = [f"{name}={dotenv.quote(value)}" for name, value in deployment.values.items()]
    write_if_changed(deployment.make_state() / LAST_GOOD, "\n".join(lines) + "\n", mode=PRIVATE)
    (deployment.state / RESTORED).unlink(missing_ok=True)


def last_good(deployment: Deployment) -> Deployment | None:
    """Return the deployment with its last working settings; `None` if there are none yet.

    A damaged file is set aside.
    """
    place = deployment.state / LAST_GOOD
    if read_state_text(place, limit=dotenv.MOST_BYTES) is None:
        return None
    return Deployment(deployment.directory, settings=place)


def changes(deployment: Deployment) -> tuple[Change, ...]:
    """Return the changes of `.env` since the last working settings; empty if there are none yet."""
    good = last_good(deployment)
    return () if good is None else difference(good.values, deployment.values)


def difference(good: Mapping[str, str], now: Mapping[str, str]) -> tuple[Change, ...]:
    """Return the settings that differ. A missing setting equals an empty one."""
    names = dict.fromkeys([*now, *good])
    rows = (Change(name, good.get(name, ""), now.get(name, "")) for name in names)
    return tuple(row for row in rows if row.good != row.now)


def mark_restored(deployment: Deployment, why: str) -> None:
    """Record that the engine runs with the last working settings, and why."""
    text = f"{datetime.now(UTC):%Y-%m-%d %H:%M:%S} UTC: {why}\n"
    write_if_changed(deployment.make_state() / RESTORED, text, mode=PRIVATE)


def restored_since(deployment: Deployment) -> str:
    """Return since when and why the engine runs with the last working settings; empty if it runs with `.env`."""
    return (read_state_text(deployment.state / RESTORED) or "").strip()
