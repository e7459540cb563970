"""Metadata of weights on the Hugging Face Hub, read before the weights are downloaded.

A GGUF's header is the beginning of the file. Its bytes are kept, and the download continues after them.
"""

from __future__ import annotations

import os
from collections.abc import Iterable
from io import BytesIO
from pathlib import Path

from dflash_deploy.errors import DownloadFailed
from dflash_deploy.weights.checkpoints import HubMetadata
from dflash_deploy.weights.fetch import DownloadOptions, fetch, missing_files
from dflash_deploy.weights.gguf import LONGEST, Header, HeaderEnds, NotGguf, parse_header, read_header
from dflash_deploy.weights.lockfile import Lock, LockedFile, LockedModel, Role
from dflash_deploy.weights.pull import RequestedModel
from dflash_deploy.weights.source import Source
from dflash_deploy.weights.spans import open_progress
from dflash_deploy.weights.staging import check_room, download_client, locked_staging, named_write_errors, part_files
from dflash_deploy.weights.transfer import Download, Transfer

CONFIGS = frozenset({"config.json", "hf_quant_config.json", "tokenizer_config.json"})
"""Metadata files of target and drafter: a few kilobytes."""

FIRST = 1 << 20
"""Bytes of a GGUF that are read first for its header."""


def read_hub_metadata(source: Source, wanted: Iterable[RequestedModel], lock: Lock) -> HubMetadata:
    """Download only the metadata into the models' directories, and return it.

    Raises DownloadFailed, and the errors of refused requests.
    """
    headers: dict[Role, Header] = {}
    names: dict[Role, frozenset[str]] = {}
    for requested in wanted:
        model = lock.models[requested.role]
        names[requested.role] = frozenset(file.path for file in model.files)
        fetch(source, model.only(CONFIGS), requested.directory, DownloadOptions())
        # the first name is the model, the second its projector
        for file in model.files:
            if requested.names and file.path == requested.names[0]:
                headers[requested.role] = header_of(source, model, file, requested.directory, DownloadOptions())
    return HubMetadata(headers, names)


def header_of(
    source: Source, model: LockedModel, file: LockedFile, directory: Path, options: DownloadOptions
) -> Header:
    """Return the header of a GGUF: from the file on disk, else from its first bytes on the Hub.

    Raises DownloadFailed if the file is not a GGUF or cannot be downloaded.
    """
    try:
        if not missing_files(directory, model.only({file.path})):
            return read_header(directory / file.path)
        with named_write_errors(directory), locked_staging(directory) as staging:
            check_room(directory, min(file.size, LONGEST), model)
            return _fetched(source, model, file, staging, options)
    except NotGguf as problem:
        raise DownloadFailed(
            f"{model.repo}: {file.path} is not a valid GGUF: {problem}",
            hint="choose another file of the repository, or another repository",
        ) from None


def _fetched(source: Source, model: LockedModel, file: LockedFile, staging: Path, options: DownloadOptions) -> Header:
    record, part = part_files(staging, file)
    progress = open_progress(record, part, file)
    until, restarted = min(FIRST, file.size), False
    with (
        download_client() as client,
        Download(Transfer(source, model, client, options), file, part, progress) as download,
    ):
        while True:
            for span in progress.spans:
                download.run(span, until)
            try:
                return parse_header(BytesIO(os.pread(download.descriptor, until, 0)), file.path)
            except HeaderEnds:
                if until >= min(file.size, LONGEST):
                    raise
                until = min(4 * until, file.size)
            except NotGguf:
                # wrong bytes may have arrived on the way: once more from the start
                progress.reset()
                if restarted:
                    progress.save()
                    raise
                restarted = True
