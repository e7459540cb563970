"""Shell lines as words, without a shell: nothing is run, and no variable of this process is read.

Variables that the script assigns itself, and defaults as in `${NAME:-default}`, are put in. Everything else that a
shell would look up or run stays as it is written, and is marked. A branch is not decided: an assignment below a
condition counts only if the name has no value yet.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, field

from dflash_deploy.foreign.items import RecipeRefused, ShellWord

ASSIGNMENT = re.compile(r"([A-Za-z_]\w*)(\+?)=")
_NAME = re.compile(r"[A-Za-z_]\w*|[0-9@*#?$!-]")
_EXPANSION = re.compile(r"(?P<name>[A-Za-z_]\w*|[0-9]+|[@*])(?P<all>\[[@*]\])?(?::?(?P<how>[-=?+])(?P<word>.*))?", re.S)
_OPENS, _CLOSES = frozenset({"if", "for", "while", "until", "case"}), frozenset({"fi", "done", "esac"})
_KEYWORDS = _OPENS | _CLOSES | {"then", "else", "elif", "do", "in", "{", "}", "!"}
_EXPORTS = frozenset({"export", "declare", "readonly", "local", "typeset"})
_LONGEST_EXPANSION = 1 << 16
_DEEPEST = 20

Values = tuple[tuple[str, str], ...]  # the words of a variable, each with what of it is not set


@dataclass(frozen=True)
class _Part:
    """A part of a word: `text`, `variable` (its expression) or `command` (its text)."""

    kind: str
    text: str
    quoted: bool


@dataclass(frozen=True)
class _Token:
    """A word of parts, or an operator."""

    line: int
    operator: str = ""
    parts: tuple[_Part, ...] = ()

    @property
    def plain(self) -> str:
        """The word as it is written, without its quotes."""
        return "".join(part.text if part.kind == "text" else f"${part.text}" for part in self.parts)


@dataclass(frozen=True)
class ShellCommand:
    """One command: its words, the variables before it, and those that it exports."""

    words: tuple[ShellWord, ...]
    variables: tuple[tuple[str, ShellWord], ...] = ()
    exports: tuple[tuple[str, ShellWord], ...] = ()


class _Scanner:
    """Splits a text into tokens. Raises RecipeRefused for a quote or bracket that is never closed."""

    def __init__(self, text: str, line: int = 1) -> None:
        self.text, self.at, self.line = text, 0, line
        self.parts: list[_Part] = []
        self.here: list[str] = []
        self.drops = False

    def tokens(self) -> Iterator[_Token]:
        """Yield words and operators; comments, redirections and here-documents are left out."""
        while self.at < len(self.text):
            yield from self._step()
        yield from self._word()

    def _step(self) -> Iterator[_Token]:
        char, two = self.text[self.at], self.text[self.at : self.at + 2]
        if char == "\\":
            self._backslash()
        elif char in "'\"`$":
            self._add_quoted(char)
        elif char in " \t\r\n":
            yield from self._word()
            self.at += 1
            if char == "\n":
                yield _Token(self.line, "\n")
                self.line += 1
                self._skip_documents()
        elif char == "#" and not self.parts:
            end = self.text.find("\n", self.at)
            self.at = len(self.text) if end < 0 else end
        elif char in "<>" or two in ("&>",):
            yield from self._redirected()
        elif char == "(" and ASSIGNMENT.fullmatch(_Token(0, "", tuple(self.parts)).plain):
            yield from self._word()
            self.at += 1
            yield _Token(self.line, "=(")
        elif char in ";&|()":
            yield from self._word()
            yield _Token(self.line, two if two in ("&&", "||", ";;") else char)
            self.at += 2 if two in ("&&", "||", ";;") else 1
        else:
            self._text(char)
            self.at += 1

    def _text(self, text: str, *, quoted: bool = False) -> None:
        last = self.parts[-1] if self.parts else None
        if last and last.kind == "text" and last.quoted == quoted:
            self.parts[-1] = _Part("text", last.text + text, quoted)
        else:
            self.parts.append(_Part("text", text, quoted))

    def _word(self) -> Iterator[_Token]:
        if self.parts and not self.drops:
            yield _Token(self.line, "", tuple(self.parts))
        self.drops = self.drops and not self.parts
        self.parts = []

    def _backslash(self) -> None:
        follows = self.text[self.at + 1 : self.at + 2]
        if follows == "\n" or self.text.startswith("\r\n", self.at + 1):
            self.line += 1
            self.at += 2 if follows == "\n" else 3
        elif follows in ("", " ", "\t") and not self.parts:
            # a page that lost its line ends, or a blank after the backslash
            self.at += 2
        elif self.text.startswith("\\\\\n", self.at) and not self.parts:
            # a page that escaped it once more
            self.line += 1
            self.at += 3
        else:
            self._text(follows, quoted=True)
            self.at += 2

    def _add_quoted(self, char: str) -> None:
        if char == "'":
            self._text(self._until("'"), quoted=True)
        elif char == "`":
            self.parts.append(_Part("command", self._until("`"), False))
        elif char == "$":
            self._expansion(quoted=False)
        else:
            self._double()

    def _until(self, end: str) -> str:
        stop = self.text.find(end, self.at + 1)
        if stop < 0:
            raise _open(end, self.line)
        found = self.text[self.at + 1 : stop]
        self.line += found.count("\n")
        self.at = stop + 1
        return found

    def _double(self) -> None:
        began = self.line
        self.at += 1
        self._text("", quoted=True)
        while self.at < len(self.text):
            char = self.text[self.at]
            if char == '"':
                self.at += 1
                return
            if char == "$":
                self._expansion(quoted=True)
                continue
            if char == "`":
                self.parts.append(_Part("command", self._until("`"), True))
                continue
            if char == "\\" and (follows := self.text[self.at + 1 : self.at + 2]) and follows in '"\\$`\n':
                self._text("" if follows == "\n" else follows, quoted=True)
                self.line += follows == "\n"
                self.at += 2
                continue
            self.line += char == "\n"
            self._text(char, quoted=True)
            self.at += 1
        raise _open('"', began)

    def _expansion(self, *, quoted: bool) -> None:
        follows = self.text[self.at + 1 : self.at + 2]
        if follows in ("{", "("):
            end = _closing(self.text, self.at + 1, self.line)
            inner = self.text[self.at + 2 : end]
            self.parts.append(_Part("variable" if follows == "{" else "command", inner, quoted))
            self.line += inner.count("\n")
            self.at = end + 1
        elif name := _NAME.match(self.text, self.at + 1):
            self.parts.append(_Part("variable", name[0], quoted))
            self.at = name.end()
        else:
            self._text("$", quoted=quoted)
            self.at += 1

    def _redirected(self) -> Iterator[_Token]:
        if not (len(self.parts) == 1 and self.parts[0].text.isdigit()):
            yield from self._word()
        self.parts = []
        found = re.compile(r"&?[<>]+[&|-]?").match(self.text, self.at)
        operator = found[0] if found else self.text[self.at]
        self.at += len(operator)
        # the next word is a file
        self.drops = True
        document = re.compile(r"[ \t]*['\"\\]?(\w+)").match(self.text, self.at) if operator in ("<<", "<<-") else None
        if document:
            self.here.append(document[1])

    def _skip_documents(self) -> None:
        while self.here:
            end = re.compile(rf"^[ \t]*{re.escape(self.here.pop(0))}[ \t]*$", re.M).search(self.text, self.at)
            stop = end.end() if end else len(self.text)
            self.line += self.text.count("\n", self.at, stop)
            self.at = stop


def _open(quote: str, line: int) -> RecipeRefused:
    return RecipeRefused(f"line {line}: {quote} is opened and never closed", hint="copy the whole command")


def _closing(text: str, start: int, line: int) -> int:
    """The place of the bracket that closes the one at `start`."""
    opening, depth = text[start], 0
    closing = {"{": "}", "(": ")"}[opening]
    for place in range(start, len(text)):
        depth += (text[place] == opening) - (text[place] == closing)
        if depth == 0:
            return place
    raise _open(f"${opening}", line)


@dataclass
class Script:
    """The commands of a text, in order. `variables` are known before its first line."""

    variables: dict[str, Values] = field(default_factory=dict)
    depth: int = 0
    undecided: list[tuple[str, ShellWord]] = field(default_factory=list)
    """Assignments of branches that are ignored."""

    def commands(self, text: str, line: int = 1) -> Iterator[ShellCommand]:
        """Yield each command. Raises RecipeRefused."""
        current: list[_Token] = []
        tokens = list(_Scanner(text, line).tokens())
        pattern, array = False, False
        for number, token in enumerate(tokens):
            if pattern:
                # the words before ) are those of a branch of `case`; `esac` ends all of them
                pattern = token.operator != ")" and token.plain != "esac"
                if token.plain != "esac":
                    continue
            if current and current[0].plain == "case" and token.plain == "in":
                pattern, current = True, []
                self.depth += 1
                continue
            pattern = token.operator == ";;"
            if not token.operator or token.operator == "=(" or (array and token.operator == ")"):
                array = token.operator == "=(" or (array and not token.operator)
                current.append(token)
            elif not (token.operator == "\n" and (array or _goes_on(current, tokens, number + 1))):
                yield from self._command(current)
                current, array = [], False
        yield from self._command(current)

    def _command(self, tokens: list[_Token]) -> Iterator[ShellCommand]:
        while tokens and tokens[0].plain in _KEYWORDS:
            if tokens[0].plain == "for":
                # its words are not a command
                tokens = tokens[:1]
            self.depth += (tokens[0].plain in _OPENS) - (tokens[0].plain in _CLOSES)
            tokens = tokens[1:]
        exported = bool(tokens) and tokens[0].plain in _EXPORTS
        if exported:
            tokens = [token for token in tokens[1:] if not token.plain.startswith("-")]
        assigned: list[tuple[str, ShellWord]] = []
        while tokens and (found := ASSIGNMENT.match(tokens[0].plain)) and tokens[0].parts[0].kind == "text":
            tokens, value = self._assigned(tokens, found)
            assigned.append((found[1], value))
        words = tuple(word for token in tokens if not token.operator for word in self.expanded(token))
        if words and not exported:
            yield ShellCommand(words, variables=tuple(assigned))
        elif exported and assigned:
            yield ShellCommand((), exports=tuple(assigned))

    def _assigned(self, tokens: list[_Token], found: re.Match[str]) -> tuple[list[_Token], ShellWord]:
        """The tokens after an assignment, and its value, which is kept."""
        name, more = found[1], bool(found[2])
        if len(tokens) > 1 and tokens[1].operator == "=(":
            end = next((at for at, token in enumerate(tokens) if token.operator == ")"), len(tokens))
            words = [word for token in tokens[2:end] for word in self.expanded(token)]
            rest, several = tokens[end + 1 :], True
        else:
            first = tokens[0].parts[0]
            value = _Token(tokens[0].line, "", (_Part("text", first.text[found.end() :], True), *tokens[0].parts[1:]))
            words, rest, several = [self._joined(value)], tokens[1:], False
        values = tuple((word.text, word.unset) for word in words)
        known = self.variables.get(name)
        if more and known:
            values = (*known, *values) if several else (_one((*known, *values)),)
        if more or not self.depth or not any(text for text, _ in known or ()):
            self.variables[name] = values
        elif known != values:
            self.undecided.append((name, ShellWord(_one(values, " ")[0], tokens[0].line)))
        return rest, ShellWord(_one(values, " ")[0], tokens[0].line, _one(values)[1])

    def expanded(self, token: _Token) -> list[ShellWord]:
        """The words of a token: a variable without quotes may be several, or none."""
        parts = [part for part in token.parts if part.text]
        if len(parts) == 1 and _whole(parts[0]):
            return [ShellWord(text, token.line, unset) for text, unset in self._value(parts[0].text, 0)]
        return self._split(token) if any(part.kind == "variable" for part in parts) else [self._joined(token)]

    def _split(self, token: _Token) -> list[ShellWord]:
        pieces, unset = [""], ""
        for part in token.parts:
            text, missing = self._text_of(part, 0)
            unset = unset or missing
            if part.kind != "variable" or part.quoted or missing:
                pieces[-1] += text
                continue
            first, *others = re.split(r"\s+", text) if text else [""]
            pieces[-1] += first
            pieces += others
        quoted = any(part.quoted for part in token.parts)
        return [ShellWord(piece, token.line, unset) for piece in pieces if piece or quoted]

    def _joined(self, token: _Token, level: int = 0) -> ShellWord:
        text, unset = _one(tuple(self._text_of(part, level) for part in token.parts))
        return ShellWord(text, token.line, unset)

    def _text_of(self, part: _Part, level: int) -> tuple[str, str]:
        if part.kind == "text":
            return part.text, ""
        if part.kind == "command":
            return f"$({part.text})", f"$({part.text})"
        return _one(self._value(part.text, level), " ")

    def _value(self, expression: str, level: int) -> Values:
        """The words of a variable; as it is written, and marked, if the recipe does not set it."""
        written = f"${expression}" if _NAME.fullmatch(expression) else f"${{{expression}}}"
        found = _EXPANSION.fullmatch(expression)
        if found is None or level > _DEEPEST:
            return ((written, written),)
        name, how = found["name"], found["how"]
        known = self.variables.get(name)
        if how == "+":
            return self._default(found["word"], level) if known and any(text for text, _ in known) else ()
        if known is not None and (any(text for text, _ in known) or not how):
            return known
        if how not in ("-", "="):
            return ((f"${name}", f"${name}"),)
        value = self._default(found["word"], level)
        if how == "=":
            self.variables[name] = value
        return value

    def _default(self, text: str, level: int) -> Values:
        """The text of a default, which may name variables itself."""
        if len(text) > 1 and text[0] == text[-1] and text[0] in "'\"":
            text = text[1:-1]
        word = self.text(text, level + 1)
        return ((word.text, word.unset),)

    def text(self, text: str, level: int = 0) -> ShellWord:
        """A text in which only variables are put in, as Compose does."""
        parts, at = [], 0
        while (dollar := text.find("$", at)) >= 0:
            parts.append(_Part("text", text[at:dollar], True))
            if text.startswith("$$", dollar):
                parts.append(_Part("text", "$", True))
                at = dollar + 2
                continue
            scanner = _Scanner(text)
            scanner.at = dollar
            scanner._expansion(quoted=True)
            parts += scanner.parts
            at = scanner.at
        return self._joined(_Token(0, "", (*parts, _Part("text", text[at:], True))), level)


def _one(values: Values, between: str = "") -> tuple[str, str]:
    """The words of a variable as one, which is not longer than any real one."""
    text = between.join(text for text, _ in values)[:_LONGEST_EXPANSION]
    return text, next((unset for _, unset in values if unset), "")


def _whole(part: _Part) -> bool:
    """Whether a part is all words of an array, or of the arguments: `"${ARGS[@]}"` and `"$@"`."""
    return part.kind == "variable" and (part.text.endswith(("[@]", "[*]")) or part.text in ("@", "*"))


def _goes_on(current: list[_Token], tokens: list[_Token], at: int) -> bool:
    """Whether the next line belongs to the command: pages lose backslashes, and no command begins with a dash.

    The image of `docker run` and a path after it may have lines of their own.
    """
    while at < len(tokens) and tokens[at].operator == "\n":
        at += 1
    if not current or at == len(tokens) or tokens[at].operator:
        return False
    word = tokens[at].plain
    if ASSIGNMENT.match(current[-1].plain) and current[-1] is current[0]:
        return False
    if re.match(r"-{1,2}[A-Za-z]", word):
        return True
    single = at + 1 == len(tokens) or tokens[at + 1].operator == "\n"
    return [token.plain for token in current[:2]] == ["docker", "run"] and single and "/" in word
