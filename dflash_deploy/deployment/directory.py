"""One deployment directory: its files, and the settings of its `.env`."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path

from dflash_deploy.deployment import dotenv
from dflash_deploy.deployment.files import PRIVATE, write_atomically
from dflash_deploy.deployment.keys_of_env import whole_word, with_keys_of
from dflash_deploy.deployment.nearby import hint_without_deployment
from dflash_deploy.deployment.places import DeploymentPlaces
from dflash_deploy.deployment.secret_lines import names_a_secret, secrets_in
from dflash_deploy.errors import FileRefused, NoDeployment, SettingsRefused
from dflash_deploy.intake.files import is_file, read_beginning, read_text
from dflash_deploy.redact import Redactor, Secret, generate_key
from dflash_deploy.serve.api_keys import KEY, ApiKey, keys_in
from dflash_deploy.serve.engines import DEFAULT
from dflash_deploy.serve.refusal import Refused
from dflash_deploy.serve.secrets import SECRET_NAMES
from dflash_deploy.serve.settings import Settings


@dataclass(frozen=True)
class Deployment(DeploymentPlaces):
    """A deployment directory. `values` and `secrets` read `.env` once per command.

    `settings` is a file to read settings from instead of `.env`. Secrets always come from `.env`. `text` is the content
    that `.env` will have. `member` is one of several engines, counted from 1; `None` for the only engine, and for the
    whole of several.
    """

    settings: Path | None = None
    text: str | None = None
    member: int | None = None

    @property
    def settings_file(self) -> Path:
        """The file with the settings."""
        return self.settings or self.env_file

    @property
    def engine_state(self) -> Path:
        """The directory with the log and the run state of the engine: `.dflash/` if there is only one."""
        return self.state if self.member is None else self.state / "replicas" / str(self.member)

    def replica(self, number: int) -> Deployment:
        """Return this deployment as one of its engines, counted from 1."""
        return replace(self, member=number)

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

    def write_env(self, values: Mapping[str, str], engine: str = DEFAULT) -> None:
        """Write `.env` from an engine's template, created with mode 0600."""
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

    def with_values(self, changes: Mapping[str, str], why: Sequence[str] = ()) -> Deployment:
        """Write changed settings to `.env` and keep the previous file as `.env.last`; return the deployment read again.

        `why` is written as comments before the first changed setting and replaces earlier comments of this kind. Raises
        SettingsRefused as `with_new_key` does, and if a value cannot be written.
        """
        before = changed = self._read()
        for name, value in changes.items():
            changed = dotenv.replace_value(changed, name, value)
        if why:
            changed = dotenv.with_comments(changed, next(iter(changes)), [self.redact(line) for line in why])
        self._owned()
        write_atomically(self.last_env_file, before, mode=PRIVATE)
        return self._with(changed)

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
            last = _text_of(self.last_env_file)
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
        return dotenv.parse(_text_of(self.settings)) | secrets

    def _read(self) -> str:
        """Return the text of `.env` with its line endings."""
        return _text_of(self.env_file) if self.text is None else self.text

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
                found += (Secret(value.strip()) for name, value in _parsed(text).items() if names_a_secret(name))
        return tuple(found)

    @cached_property
    def redact(self) -> Redactor:
        """A redactor of this deployment's secrets."""
        return Redactor(self.known_secrets)


def _parsed(text: str) -> Mapping[str, str]:
    """Return the settings of a text; none if it is refused."""
    try:
        dotenv.check_text(text)
    except SettingsRefused:
        return {}
    return dotenv.parse(text)


def _text_of(file: Path) -> str:
    text = read_text(file, limit=dotenv.MOST_BYTES)
    dotenv.check_text(text)
    return text
