#!/usr/bin/env python3
"""Stands in for `llama-quantize`, which no package index carries: INPUT OUTPUT Q4_0, by llama.cpp's own gguf-py.

It is told as little as the real one, and writes what the real one writes for Q4_0: matrices quantised, the rest as it
was, `general.file_type` set.
"""

import sys

from gguf import GGMLQuantizationType, GGUFReader, GGUFValueType, GGUFWriter, Keys, LlamaFileType, quants

FORMS = {"Q4_0": (LlamaFileType.MOSTLY_Q4_0, GGMLQuantizationType.Q4_0)}


def main(source: str, target: str, form: str) -> None:
    """Quantise one file."""
    reader = GGUFReader(source)
    file_type, kind = FORMS[form]
    architecture = reader.fields[Keys.General.ARCHITECTURE].contents()
    writer = GGUFWriter(target, architecture)
    for name, field in reader.fields.items():
        if name.startswith("GGUF.") or name in {Keys.General.ARCHITECTURE, Keys.General.FILE_TYPE}:
            continue
        inner = field.types[-1] if field.types[0] == GGUFValueType.ARRAY else None
        writer.add_key_value(name, field.contents(), field.types[0], inner)
    writer.add_file_type(file_type)
    for tensor in reader.tensors:
        values = quants.dequantize(tensor.data, tensor.tensor_type)
        if values.ndim > 1 and values.shape[-1] % 32 == 0:
            writer.add_tensor(tensor.name, quants.quantize(values, kind), raw_dtype=kind)
        else:
            writer.add_tensor(tensor.name, values)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


if __name__ == "__main__":
    main(*sys.argv[1:])
