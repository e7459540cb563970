"""The Compose folder: the text of each of its files."""

from __future__ import annotations

from dflash_deploy.export.compose import (
    COMPOSE,
    IGNORED,
    LOCK,
    README,
    SETUP,
    TEMPLATE,
    ComposeProject,
    ComposeSource,
    built_files,
    compose_document,
    compose_text,
    env_template,
    ignored_files,
    mounted_files,
    weight_lists,
)
from dflash_deploy.export.compose_readme import compose_readme
from dflash_deploy.export.compose_setup import setup_script


def compose_folder(source: ComposeSource, project: ComposeProject) -> dict[str, str]:
    """The text of each file, by its path below the folder. No text has a secret."""
    document = compose_document(source, project)
    return {
        README: compose_readme(source, document),
        COMPOSE: compose_text(document),
        TEMPLATE: env_template(source),
        SETUP: setup_script(source),
        IGNORED: ignored_files(),
        **({LOCK: source.lock} if source.lock else {}),
        **weight_lists(source),
        **mounted_files(source),
        **built_files(source, document),
    }
