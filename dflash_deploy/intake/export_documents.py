"""What an exported folder records of itself. It is read strictly: a person may have edited it."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from dflash_deploy.intake.documents import Document, Name


class ExportOptions(Document):
    """The options of `export kubernetes`, by the names of `Cluster`."""

    name: Name
    replicas: Annotated[int, Field(ge=1, lt=1000)]
    weights: Literal["host-path", "claim"]
    image: Name
    gpu_resource: Name
    runtime_class: Name
    storage_class: Name
    tool_image: Name = ""
    router_image: Name = ""
    host: Name = ""
    ingress_class: Name = ""
    gateway: Name = ""
    max_replicas: Annotated[int, Field(ge=0, lt=1000)] = 0
    prometheus: Name = ""
    endpoint_picker: Name = ""


class ComposeOptions(Document):
    """The options of `export compose`, by the names of `ComposeProject`."""

    image: Name = ""
    router_image: Name = ""


class ExportRecord(Document):
    """`.dflash-export.json`: the deployment that an exported folder comes from, and the digests of its files."""

    schema_: Annotated[Literal[1], Field(alias="schema")]
    form: Name = "kubernetes"
    deployment: Name
    files: Annotated[dict[Name, Annotated[list[Name], Field(max_length=16)]], Field(max_length=1000)]


class KubernetesRecord(ExportRecord):
    """The record of `export kubernetes`, with its options."""

    options: ExportOptions


class ComposeRecord(ExportRecord):
    """The record of `export compose`, with its options."""

    form: Literal["compose"]
    options: ComposeOptions
