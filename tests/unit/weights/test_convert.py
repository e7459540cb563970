"""Conversions: what the tools are asked, and what of their work is accepted."""

import errno
import json
import os
from pathlib import Path

import pytest

from dflash_deploy.errors import BadInput, ConversionFailed, DirectoryBusy, NoRoom
from dflash_deploy.weights.convert import Conversion, Dialect
from tests.support.gguf import header, key

CONFIG = {"hidden_size": 64, "block_size": 8, "dflash_config": {"target_layer_ids": [1, 3]}}


def conversion(place: Path, form: str = "Q8_0", dialect: Dialect = "dflash") -> Conversion:
    for role in ("drafter", "target"):
        (place / role).mkdir(exist_ok=True)
        (place / role / "config.json").write_text(json.dumps(CONFIG))
    (place / "drafter" / "model.safetensors").write_bytes(b"weights")
    (place / "target" / "tokenizer.json").write_text("{}")
    return Conversion(place / "drafter", place / "target", place / "d.gguf", form, dialect)


def written(
    architecture: str = "dflash", file_type: int = 7, layers: tuple[int, ...] = (2, 4), size: int = 64
) -> bytes:
    return header(
        key("general.architecture", architecture),
        key("general.file_type", file_type),
        key(f"{architecture}.embedding_length", size),
        key(f"{architecture}.block_size", 8),
        key(f"{architecture}.target_layers", list(layers)),
        key("tokenizer.ggml.tokens", ["a", "b"]),
    )


def test_the_target_gives_its_tokenizer_in_the_way_of_each_converter(tmp_path: Path) -> None:
    upstream, fork = conversion(tmp_path), conversion(tmp_path, "Q4_K_M", "dflash-draft")
    assert [" ".join(words) for words in upstream.commands()] == [
        "--convert /drafter --outtype q8_0 --outfile /out/.d.gguf.part.gguf --target-model-dir /target"
    ]
    assert [" ".join(words) for words in fork.commands()] == [
        "--convert /drafter --outtype bf16 --outfile /out/.d.gguf.bf16.gguf",
        "--quantize /out/.d.gguf.bf16.gguf /out/.d.gguf.part.gguf Q4_K_M",
    ]
    with fork.sources() as place:
        assert {path.name for path in place.iterdir()} == {"config.json", "model.safetensors", "tokenizer.json"}
        assert (place / "config.json").samefile(tmp_path / "drafter" / "config.json")
    assert not place.exists()
    with upstream.sources() as place:
        assert place == tmp_path / "drafter"


def test_what_was_written_gets_its_name_if_it_is_the_drafter(tmp_path: Path) -> None:
    asked = conversion(tmp_path)
    (tmp_path / ".d.gguf.part.gguf").write_bytes(written())
    asked.finish()
    assert (tmp_path / "d.gguf").read_bytes() == written()


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (written("dflash-draft"), "architecture is dflash-draft"),
        (written(file_type=15), "quantization is Q4_K_M, not Q8_0"),
        (written(layers=(1, 3)), "deepest_layer is 2, config.json says 3"),
        (written(size=128), "hidden_size is 128"),
        (b"GGUF", "the converter wrote no valid GGUF"),
        (None, "the converter wrote no valid GGUF"),
    ],
)
def test_anything_else_is_refused_and_cleared_away(tmp_path: Path, content: bytes | None, said: str) -> None:
    asked = conversion(tmp_path)
    if content is not None:
        (tmp_path / ".d.gguf.part.gguf").write_bytes(content)
    with pytest.raises(ConversionFailed, match=said):
        asked.finish()
    asked.clear()
    assert not list(tmp_path.glob("*.gguf"))
    assert not list(tmp_path.glob(".*.gguf"))


def test_what_a_killed_conversion_left_is_removed_and_a_link_is_not_written_through(tmp_path: Path) -> None:
    asked, mine = conversion(tmp_path, "Q4_K_M", "dflash-draft"), tmp_path / "mine"
    mine.write_text("mine")
    (tmp_path / ".d.gguf.part.gguf").symlink_to(mine)
    (tmp_path / ".d.gguf.bf16.gguf").write_bytes(b"half of it")
    (tmp_path / ".d.gguf.sources").mkdir()
    (tmp_path / ".d.gguf.sources" / "tokenizer.json").write_text("{}")
    with asked.claimed(), asked.sources():
        assert not list(tmp_path.glob(".*.gguf"))
        with pytest.raises(DirectoryBusy, match="another conversion"), asked.claimed():
            raise AssertionError
        (tmp_path / ".d.gguf.bf16.gguf").write_bytes(b"half of it")
    assert {path.name for path in tmp_path.iterdir()} == {"drafter", "target", "mine"}
    assert mine.read_text() == "mine"


def test_on_a_full_disk_nothing_stays_of_a_conversion(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked = conversion(tmp_path)

    def full(descriptor: int) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with asked.claimed():
        (tmp_path / ".d.gguf.part.gguf").write_bytes(written())
        with pytest.raises(NoRoom, match="is full"):
            asked.finish()
    assert {path.name for path in tmp_path.iterdir()} == {"drafter", "target"}


def test_what_cannot_be_converted_is_said_before_anything_starts(tmp_path: Path) -> None:
    with pytest.raises(BadInput, match="not a valid GGUF quantization"):
        conversion(tmp_path, "Q9").check()
    asked = conversion(tmp_path)
    (tmp_path / "target" / "tokenizer.json").unlink()
    with pytest.raises(BadInput, match="no tokenizer, which the drafter needs"):
        asked.check()
    (tmp_path / "drafter" / "config.json").unlink()
    with pytest.raises(BadInput, match="it is not the drafter"):
        asked.check()
