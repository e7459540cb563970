"""One kind of document: how hostile ones are made, and what reads them."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from hypothesis import strategies as st


@dataclass(frozen=True)
class Kind:
    """A kind of document. `read` gives an input to the real reader and uses the value; `samples` are valid.

    `parse` is only the parser, for many inputs in little time; it is `read` if there is none.
    """

    name: str
    samples: Sequence[bytes]
    inputs: st.SearchStrategy[bytes]
    read: Callable[[bytes], object]
    parse: Callable[[bytes], object] | None = None

    @property
    def folder(self) -> str:
        """The name of its folder in the corpus."""
        return self.name.removeprefix(".").replace(" ", "-")
