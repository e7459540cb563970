"""The tensors of one layer: their names in the checkpoint, and the shapes and types that they must have."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping, Sequence

from dflash_deploy.serve.nvfp4.metadata import ALGORITHM, GROUP

# The part of a fused layer that a tensor belongs to, as vLLM's loaders name it; `None`: the whole layer.
Shard = str | int | tuple[int, ...] | None

_QKV = {"q": 0, "k": 1, "v": 2}

_SCALAR = ((), (1,))

_FORMS: Mapping[str, tuple[Callable[[int | None, int], tuple[tuple[int | None, ...], ...]], tuple[str, ...]]] = {
    "weight": (lambda rows, columns: ((rows, columns // 2),), ("uint8",)),
    "weight_scale": (lambda rows, columns: ((rows, columns // GROUP),), ("float8_e4m3fn",)),
    "weight_scale_2": (lambda rows, columns: _SCALAR, ("float32",)),
    "input_scale": (lambda rows, columns: _SCALAR, ("float32",)),
    "pre_quant_scale": (lambda rows, columns: ((columns,),), ("bfloat16", "float16", "float32")),
}


class BadTensor(ValueError):
    """A tensor of the checkpoint is missing, has the wrong shape or type for NVFP4_AWQ, or contains NaN or infinity."""

    def __init__(self, name: str, trouble: str) -> None:
        super().__init__(
            f"{name} {trouble}; download the checkpoint again, or choose another quantization of the target"
        )


def check_form(name: str, shape: tuple[int, ...], dtype: str, *, rows: int | None, columns: int) -> None:
    """Raises BadTensor unless the tensor fits a layer, or part of one, of `rows` by `columns`.

    `name` is the full name in the checkpoint; its last component is the name of the tensor. `dtype` is torch's name
    without the module. If `rows` is `None`, any number of rows fits.
    """
    shapes, dtypes = _FORMS[name.rpartition(".")[2]]
    wanted = shapes(rows, columns)
    fitting = (form for form in wanted if len(form) == len(shape))
    if dtype in dtypes and any(
        all(want is None or got == want for got, want in zip(shape, form, strict=True)) for form in fitting
    ):
        return
    form = ", ".join("any" if size is None else str(size) for size in wanted[0])
    raise BadTensor(
        name, f"has shape ({', '.join(map(str, shape))}) and dtype {dtype}; {ALGORITHM} wants ({form}) and {dtypes[0]}"
    )


def parts_of(shard: Shard, count: int) -> tuple[int, ...]:
    """Which of the `count` parts of a fused layer a shard covers: `q` the first, `(0, 1, 2)` three, `None` all."""
    match shard:
        case None:
            return tuple(range(count))
        case str():
            return (_QKV[shard],)
        case int():
            return (shard,)
        case _:
            return shard


def module_name(layer: str, parts: Sequence[str], shard: Shard, count: int) -> str:
    """The name of a part of a fused layer in the checkpoint: `….k_proj` for `….qkv_proj` and `k`.

    `parts` are the model's names for the parts of the layer (vLLM's packed_modules_mapping), `count` is the number of
    parts. There may be fewer names than parts, for example if `in_proj_qkv` covers three of the four. If the names do
    not decide it, the layer's own name.
    """
    covered = parts_of(shard, count)
    if shard is None or not parts:
        return layer
    if len(parts) == count:
        found = parts[covered[0]]
    elif covered[0] == 0:
        found = parts[0]
    elif covered[-1] == count - 1:
        found = parts[-1]
    else:
        return layer
    return ".".join([*layer.split(".")[:-1], found])


def original_prefix(name: str, renamed: Mapping[str, str | None]) -> str:
    """The name before vLLM's renaming of prefixes (`orig_to_new_prefix` of the model's mapper)."""
    for original, new in renamed.items():
        if new and name.startswith(new):
            return original + name.removeprefix(new)
    return name


def runs(keys: Sequence[Hashable]) -> list[range]:
    """Neighbours with equal keys: `a a b` gives the ranges 0..2 and 2..3. They share one multiplication."""
    found: list[range] = []
    for at, key in enumerate(keys):
        if found and keys[found[-1].start] == key:
            found[-1] = range(found[-1].start, at + 1)
        else:
            found.append(range(at, at + 1))
    return found
