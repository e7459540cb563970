"""Shell text as the words of its commands, by the grammar of tree-sitter-bash: nothing is run.

Values that the script assigns on every way through it are put in, with defaults as in `${NAME:-default}`. What depends
on a condition, a loop or a function is not decided: a command that needs it is marked with the construct.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from functools import cache
from itertools import islice
from time import thread_time

import tree_sitter_bash
from tree_sitter import Language, Node, Parser, Tree

from dflash_deploy.foreign.items import RecipeRefused, ShellWord

ASSIGNMENT = re.compile(r"([A-Za-z_]\w*)(\+?)=")
_EXPANSION = re.compile(r"(?P<name>\w+|[@*#?$!-])(?P<all>\[[@*]\])?(?::?(?P<how>[-=?+])(?P<word>.*))?", re.S)
_IN_TEXT = re.compile(r"\$(?:(\$)|\{((?:[^{}]|\{[^{}]*\})*)\}|([A-Za-z_]\w*))")
_LOGIC = {
    "if_statement": "if", "case_statement": "case", "for_statement": "for", "c_style_for_statement": "for",
    "while_statement": "while", "function_definition": "a function",
}  # fmt: skip
_TESTS = frozenset({"test_command", "negated_command"})
_LONGEST_EXPANSION = 1 << 16
_DEEPEST = 40
_LONGEST = 2  # seconds of CPU time; the longest script that was collected takes 0.02
_MOST_WORDS = 10_000  # of one command
_PROMPT = re.compile(
    r"^[ \t]*(?:\([\w.-]+\) ?)?(?:\[?[\w.-]+@[\w.-]+[: ]?[^\s$#%]*\]?\s?[$#%]|PS [A-Z]:[^>\n]*>|[A-Z]:\\[^>\n]*>"
    r"|[$>%\u276f\u279c](?=\s)|!(?=\w))[ \t]*(?=\S)"
)
OPTION = re.compile(r"\s*-{1,2}[A-Za-z]")
_ENV_OF_CMD = re.compile(r"^\s*set\s+\"?(\w+)=(.*?)\"?$", re.I)

Values = tuple[ShellWord, ...]


@dataclass(frozen=True)
class ShellCommand:
    """One command: its words, the variables before it, and those that it exports.

    `logic` is the construct that decides whether it runs, or with what; empty if nothing does.
    """

    words: tuple[ShellWord, ...]
    variables: tuple[tuple[str, ShellWord], ...] = ()
    exports: tuple[tuple[str, ShellWord], ...] = ()
    logic: str = ""
    missing: tuple[str, ...] = ()
    """Lists of words that the script does not set, such as `"$@"`."""


@cache
def _parser() -> Parser:
    return Parser(Language(tree_sitter_bash.language()))


def _parsed(text: bytes) -> Tree:
    """The syntax tree. Raises RecipeRefused for nesting, with whose square the parser's time grows."""
    ends = thread_time() + _LONGEST
    parser = _parser()
    try:
        return parser.parse(
            lambda at, _: text[at : at + 4096], progress_callback=lambda _at, _error: thread_time() > ends
        )
    except ValueError:
        parser.reset()
        raise RecipeRefused("the script is nested too deep", hint="pass the line that starts the engine") from None


def tidied(text: str) -> str:
    """A text as a shell reads it, line by line: without prompts, with the line ends of Windows and lost backslashes."""
    raw = text.split("\n")
    # `> FILE` in a line that continues a command is a redirection, and no prompt
    within = (False, *(line.rstrip().endswith("\\") for line in raw))
    lines = [
        _tidied_line(line if continued and not OPTION.match(line.lstrip(" >")) else _PROMPT.sub("", line))
        for line, continued in zip(raw, within, strict=False)
    ]
    begin = 0
    for number, line in enumerate(lines[1:], 1):
        before = lines[number - 1]
        if before.endswith("\\") and not before.lstrip().startswith("#"):
            # a comment between two lines of a command
            lines[number] = "\\" if line.lstrip().startswith("#") else line
        elif OPTION.match(line) and before.strip() and not before.lstrip().startswith("#"):
            lines[number - 1] = f"{_uncommented(before)} \\"
        elif "/" in line and len(line.split()) == 1 and re.match(r"\s*(sudo )?(docker|podman) run\b", lines[begin]):
            # the image of `docker run`, on a line of its own
            lines[number - 1] += " \\"
        else:
            begin = number
    return "\n".join(lines)


def _uncommented(line: str) -> str:
    """A line without the comment at its end, which would hide the backslash that continues it."""
    heads = (line[: at.start()] for at in islice(re.finditer(r"\s#\s", line), 20))
    return next((head for head in heads if not head.count("'") % 2 and not head.count('"') % 2), line)


def _tidied_line(line: str) -> str:
    if found := _ENV_OF_CMD.match(line):
        line = f"{found[1]}='{found[2]}'"
    line = re.sub(r"(?:(?<=\s)[`^]|\\\\?)[ \t]*$|(?<=\s)\\[ \t]+#.*$", r"\\", line)
    # `<your-key>` is a placeholder, and no redirection
    line = re.sub(r"(?<=[\s=])<([A-Za-z][^<>'\"$|&;()]*)>(?=[\s/:]|$)", _placeholder, line)
    return re.sub(r"(?<=\s)(?:\\|[`^](?=\s+-))\s+(?=\S)", "", line)


def _placeholder(found: re.Match[str]) -> str:
    return rf"\<{found[1].replace(' ', '-')}\>"


@dataclass
class Script:
    """The commands of a text, in order. `variables` are known before its first line."""

    variables: dict[str, Values] = field(default_factory=dict)
    undecided: dict[str, str] = field(default_factory=dict)
    """Variables whose value depends on a construct, with its name."""
    broken: list[int] = field(default_factory=list)
    """Lines that are not shell: a quote or bracket is never closed."""
    _line: int = 1
    _missing: list[str] = field(default_factory=list)
    _used: list[str] = field(default_factory=list)

    def commands(self, text: str, line: int = 1) -> Iterator[ShellCommand]:
        """Yield each command. Raises RecipeRefused for a text that is nested too deep."""
        self._line = line
        tree = _parsed(text.encode())
        self.broken += [self._line + row for row in _errors(tree.root_node)]
        yield from self._walk(tree.root_node, "", 0)

    def _walk(self, node: Node, logic: str, depth: int) -> Iterator[ShellCommand]:
        if depth > _DEEPEST:
            raise RecipeRefused(f"line {self._row(node)}: commands are nested too deep", hint="pass the inner command")
        kind = node.type
        if kind == "command":
            yield from self._command(node, logic)
        elif kind in ("variable_assignment", "variable_assignments"):
            for one in [node] if kind == "variable_assignment" else node.named_children:
                self._assign(one, logic)
        elif kind == "declaration_command":
            yield from self._declared(node, logic)
        elif kind == "list":
            yield from self._list(node, logic, depth)
        elif kind not in ("comment", "heredoc_redirect"):
            for one in node.named_children:
                yield from self._walk(one, logic or _LOGIC.get(kind, ""), depth + 1)

    def _declared(self, node: Node, logic: str) -> Iterator[ShellCommand]:
        """The variables of `export A=B`, and the command after it if a backslash too many joins them."""
        rest = [one for one in node.named_children if one.type != "variable_assignment"]
        assigned = [self._assign(one, logic) for one in node.named_children if one not in rest]
        if assigned and re.match(r"export|(declare|typeset) -\w*x", _text(node)):
            yield ShellCommand((), exports=tuple(assigned), logic=logic)
        if assigned and any(one.type != "variable_name" for one in rest):
            yield ShellCommand(tuple(word for one in rest for word in self._fields(one)), logic=logic)

    def _list(self, node: Node, logic: str, depth: int) -> Iterator[ShellCommand]:
        """`A && B`, which decides nothing unless A is a test, and `A || B`, which does."""
        left, *rest = node.named_children
        yield from self._walk(left, logic, depth + 1)
        decides = left.type in _TESTS or any(one.type == "||" for one in node.children)
        for one in rest:
            yield from self._walk(one, logic or ("&&" if decides else ""), depth + 1)

    def _command(self, node: Node, logic: str) -> Iterator[ShellCommand]:
        if node.child_count > _MOST_WORDS:
            said = f"line {self._row(node)}: a command has {node.child_count} words (limit: {_MOST_WORDS})"
            raise RecipeRefused(said, hint="check that it is the right file")
        self._missing, self._used = [], []
        variables, words = list[tuple[str, ShellWord]](), list[ShellWord]()
        for one in node.children:
            if one.type == "variable_assignment":
                variables.append(self._assigned(one)[:2])
            elif not one.type.endswith("redirect"):
                words += self._fields(one.named_children[0] if one.type == "command_name" else one)
        undecided = (self.undecided[name] for name in self._used if name in self.undecided)
        if words:
            yield ShellCommand(
                tuple(words), tuple(variables), logic=logic or next(undecided, ""), missing=tuple(self._missing)
            )

    def _assign(self, node: Node, logic: str) -> tuple[str, ShellWord]:
        """Keep an assignment, and return it."""
        self._used = []
        name, shown, values = self._assigned(node)
        if node.named_children[0].type == "subscript":
            return name, shown
        reasons = (self.undecided[used] for used in self._used if used in self.undecided)
        reason = logic or next(reasons, "")
        if reason:
            self.undecided[name] = reason
            self.variables.setdefault(name, values)
        else:
            self.variables[name] = values
            self.undecided.pop(name, None)
        return name, shown

    def _assigned(self, node: Node) -> tuple[str, ShellWord, Values]:
        target, *given = node.named_children
        name, row = _text(target), self._row(node)
        more, several = any(one.type == "+=" for one in node.children), bool(given) and given[0].type == "array"
        values: Values = ()
        if several:
            values = tuple(word for one in given[0].named_children for word in self._fields(one))
        elif given:
            values = (one_word(self._fields(given[0], quoted=True), row),)
        if more:
            self._used.append(name)
            known = self.variables.get(name, ())
            values = (*known, *values) if several else (one_word([*known, *values], row),)
        return name, one_word(list(values), row, " "), values

    def _fields(self, node: Node, *, quoted: bool = False) -> list[ShellWord]:  # noqa: PLR0911 - one for each kind
        """The words of a node: a variable without quotes may be several, or none."""
        row, kind = self._row(node), node.type
        if kind == "raw_string":
            return [ShellWord(_text(node)[1:-1], row)]
        if kind == "ansi_c_string":
            return [ShellWord(_text(node)[2:-1].replace("\\n", "\n").replace("\\'", "'"), row)]
        if kind in ("simple_expansion", "expansion"):
            return self._expanded(node, quoted=quoted)
        if kind in ("command_substitution", "process_substitution", "arithmetic_expansion"):
            return [ShellWord(_text(node), row, _text(node))]
        if kind in ("string", "translated_string"):
            inner = self._joined(node, node.children[1:-1], quoted=True)
            empty = not inner and not any(one.type.endswith("expansion") and _is_list(one) for one in node.children)
            return inner or ([ShellWord("", row)] if empty else [])
        if kind == "concatenation":
            return self._joined(node, node.children, quoted=quoted)
        # a backslash in a word escapes the next character
        return [ShellWord(re.sub(r"\\\n|\\(?=[^\w])", "", _text(node)), row)] if kind != "comment" else []

    def _joined(self, node: Node, parts: list[Node], *, quoted: bool) -> list[ShellWord]:
        found: list[ShellWord] = []
        data, base = node.text or b"", node.start_byte
        at = base + (1 if node.type == "string" else 0)
        for part in parts:
            found = _glued(found, self._literal(data[at - base : part.start_byte - base], part))
            inner = self._literal(part.text or b"", part) if part.type == "string_content" else None
            found = _glued(found, inner if inner is not None else self._fields(part, quoted=quoted))
            at = part.end_byte
        end = node.end_byte - (1 if node.type == "string" else 0)
        return _glued(found, self._literal(data[at - base : end - base], node))

    def _literal(self, text: bytes, node: Node) -> list[ShellWord]:
        plain = re.sub(r'\\([\\"$`])', r"\1", text.decode().replace("\\\n", ""))
        return [ShellWord(plain, self._row(node))] if plain else []

    def _expanded(self, node: Node, *, quoted: bool) -> list[ShellWord]:
        written, row = _text(node), self._row(node)
        expression = written[2:-1] if written.startswith("${") else written[1:]
        values = [ShellWord(one.text, row, one.unset) for one in self._value(expression, 0)]
        if _is_list(node):
            if values and values[0].unset == written:
                self._missing.append(written)
                return []
            return values
        if quoted:
            return [one_word(values, row, " ")]
        return [
            ShellWord(word, row, one.unset)
            for one in values
            for word in ([one.text] if one.unset else one.text.split())
        ]

    def _value(self, expression: str, level: int) -> Values:
        """The words of a variable; as it is written, and marked, if the recipe does not set it."""
        written = f"${expression}" if re.fullmatch(r"\w+|[@*]", expression) else f"${{{expression}}}"
        found = _EXPANSION.fullmatch(expression)
        if found is None or level > _DEEPEST:
            return (ShellWord(written, 0, written),)
        name, how = found["name"], found["how"]
        self._used.append(name)
        known = self.variables.get(name, (ShellWord("~", 0),) if name == "HOME" else None)
        given = known is not None and any(one.text for one in known)
        if how == "+":
            return (self._default(found["word"], level),) if given else ()
        if known is not None and (given or not how):
            return known
        if how not in ("-", "="):
            return (ShellWord(written if found["all"] else f"${name}", 0, written if found["all"] else f"${name}"),)
        value = (self._default(found["word"], level),)
        if how == "=":
            self.variables[name] = value
        return value

    def _default(self, text: str, level: int) -> ShellWord:
        """The text of a default, which may name variables itself."""
        if len(text) > 1 and text[0] == text[-1] and text[0] in "'\"":
            text = text[1:-1]
        return self.text(text, level + 1)

    def text(self, text: str, level: int = 0) -> ShellWord:
        """A text in which only variables are put in, as Compose does."""
        unset: list[str] = []

        def value(found: re.Match[str]) -> str:
            if found[1]:
                return "$"
            one = one_word(list(self._value(found[2] or found[3] or "", level)), 0, " ")
            unset.extend([one.unset] if one.unset else [])
            return one.text

        filled = _IN_TEXT.sub(value, text)[:_LONGEST_EXPANSION]
        return ShellWord(filled, 0, next(iter(unset), ""))

    def _row(self, node: Node) -> int:
        return self._line + node.start_point.row


def _text(node: Node) -> str:
    return (node.text or b"").decode()


def _is_list(node: Node) -> bool:
    """Whether an expansion is all words of a list: `"${ARGS[@]}"`, `"$@"` and `$*`."""
    return re.fullmatch(r"\$[@*]|\$\{(?:[@*]|\w+\[[@*]\]).*\}", _text(node), re.S) is not None


def one_word(values: Sequence[ShellWord], row: int, between: str = "") -> ShellWord:
    """Several words as one, which is not longer than any real one."""
    text = between.join(one.text for one in values)[:_LONGEST_EXPANSION]
    return ShellWord(text, row, next((one.unset for one in values if one.unset), ""))


def _glued(found: list[ShellWord], more: list[ShellWord]) -> list[ShellWord]:
    if not found or not more:
        return found or more
    return [*found[:-1], one_word([found[-1], more[0]], found[-1].line), *more[1:]]


def _errors(root: Node) -> Iterator[int]:
    """The rows of what the grammar does not know."""
    pending = [root] if root.has_error else []
    while pending:
        node = pending.pop()
        if node.is_error or node.is_missing:
            yield from range(node.start_point.row, node.end_point.row + 1)
        pending += [one for one in node.children if one.has_error or one.is_missing]
