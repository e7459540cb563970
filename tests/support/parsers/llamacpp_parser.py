"""llama.cpp's parser, run in a process of its own: `common_params_parse` out of a prebuilt library, as it is.

The wheel of `xllamacpp` is the one prebuilt library on the index that has it, and was made from b11549. What that
accepts is held against the options in b11434's source as well, so that an option newer than that build is refused.
"""

from __future__ import annotations

import ctypes
import importlib
import importlib.util
import os
import re
import tempfile
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from tests.support.parsers.answers import answer

# these name a file that the parser reads, and that lies where the engine runs, which is not here
_READ_AT_ONCE = ("--api-key-file", "--chat-template-file")

# bool common_params_parse(int, char **, common_params &, llama_example, void (*)(int, char **))
_PARSE = "_Z19common_params_parseiPPcR13common_params13llama_examplePFviS0_E"
_LLAMA_EXAMPLE_SERVER = 12
# a Python object without attributes of its own starts with its counter and its type; common_params follows
_OFFSET = object.__basicsize__

_WORD = re.compile(rb"(?<![\w-])--?[a-zA-Z][\w-]*(?=\0)")
_LITERAL = r'\s*"(?:[^"\\]|\\.)*"\s*'
_OPTION = re.compile(
    rf"add_opt\(common_arg\(\s*\{{(?P<names>(?:{_LITERAL},?)+)\}}\s*,(?:\s*\{{(?P<negated>(?:{_LITERAL},?)*)\}}\s*,)?"
    # the handler says how many values there are; hint and help may be made by calls
    r".*?\[[^\]]*\]\s*\(\s*common_params\s*&\s*\w*(?P<values>[^)]*)\)",
    re.DOTALL,
)


class Parser:
    """The library's parser, with the parameters of a server."""

    def __init__(self) -> None:
        specification = importlib.util.find_spec("xllamacpp")
        if specification is None or specification.origin is None:
            raise ImportError("xllamacpp is not on the path")
        (library,) = Path(specification.origin).parent.glob("xllamacpp*.so")
        self._parameters: Any = importlib.import_module("xllamacpp").CommonParams
        self._library = library
        self._parse = ctypes.CDLL(str(library))[_PARSE]
        self._parse.restype = ctypes.c_bool
        parameters = self._parameters()
        if not self._call(["--port", "4711"], parameters) or parameters.port != 4711:
            raise RuntimeError("CommonParams is not laid out as expected: the port went somewhere else")

    def _call(self, arguments: list[str], parameters: object) -> bool:
        before = ["", *arguments]
        here = [
            os.devnull if option in _READ_AT_ONCE else argument
            for option, argument in zip(before, arguments, strict=False)
        ]
        words = [b"llama-server", *(argument.encode() for argument in here)]
        vector = (ctypes.c_char_p * (len(words) + 1))(*words, None)
        address = ctypes.c_void_p(id(parameters) + _OFFSET)
        return bool(self._parse(len(words), vector, address, _LLAMA_EXAMPLE_SERVER, None))

    def read(self, arguments: list[str]) -> Any:
        """The parameters that a server gets with these arguments."""
        parameters = self._parameters()
        if not self._call(arguments, parameters):
            raise ValueError(f"not accepted: {arguments}")
        return parameters

    def options(self, source: Iterable[str]) -> list[str]:
        """The options of a server, of those that the source names and those that are words of the library."""
        words = {word.decode() for word in _WORD.findall(self._library.read_bytes())}
        return [
            name
            for name in sorted(words | set(source))
            if f"invalid argument: {name}\n" not in f"{self.rejection([name, os.devnull])}\n"
        ]

    def rejection(self, arguments: list[str]) -> str | None:
        """`None`, or what the parser wrote; a child asks, because the parser may end its process."""
        with tempfile.TemporaryFile() as written:
            child = os.fork()
            if child == 0:
                os.dup2(written.fileno(), 1)
                os.dup2(written.fileno(), 2)
                os._exit(0 if self._call(arguments, self._parameters()) else 1)
            _, status = os.waitpid(child, 0)
            written.seek(0)
            lines = written.read().decode(errors="replace").splitlines()
        # such as that there is no GPU here
        text = "\n".join(line for line in lines if not line.startswith("warning:")).strip()
        return None if status == 0 else text or f"ended with status {status}"


def option_values(source: str) -> dict[str, int]:
    """Each option that common/arg.cpp adds, for whichever program, and how many values it takes."""
    options: dict[str, int] = {}
    for found in _OPTION.finditer(re.sub(r"^\s*//.*$", "", source, flags=re.MULTILINE)):
        values = 0 if "bool" in found["values"] else found["values"].count(",")
        names = re.findall(r'"([^"]+)"', found["names"] + (found["negated"] or ""))
        options.update(dict.fromkeys(names, values))
    return options


def environment_names(source: str) -> set[str]:
    """The environment variables that common/arg.cpp reads options from."""
    return set(re.findall(r'set_env\("(\w+)"\)', source))


def unknown(arguments: list[str], options: Mapping[str, int]) -> str | None:
    """The text for the first argument that is no option of b11434, read as the parser reads them."""
    position = 0
    while position < len(arguments):
        argument = arguments[position]
        name = argument.replace("_", "-") if argument.startswith("--") else argument
        if name not in options:
            return f"error: invalid argument: {name} (not in b11434)"
        position += 1 + options[name]
    return None


def main() -> None:
    """Answer for the lists on standard input."""
    parser = Parser()
    options = option_values(Path(os.environ["LLAMACPP_OPTION_SOURCE"]).read_text(encoding="utf-8"))
    answer(
        lambda arguments: unknown(arguments, options) or parser.rejection(arguments), lambda: parser.options(options)
    )


if __name__ == "__main__":
    main()
