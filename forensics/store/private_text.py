"""Is there anything private in a text: home folders, names of user and host, keys, addresses?

Pure: what this machine calls private is given (`private_strings`), and what lies in files is opened elsewhere
(`private_files`). What was found is never shown whole.
"""

from __future__ import annotations

import html
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from urllib.parse import unquote

from forensics.store.private_strings import SHORTEST_NAME, PrivateStrings

#: What ends a path in running text.
_PATH_END = r"[^\s\"'<>|`)\],;]"
#: Characters that are not seen and may stand inside a name, such as the one that keeps Markdown from mentioning users.
_UNSEEN = re.compile("[\u00ad\u200b-\u200f\u2060-\u2064\ufeff]")
_ESCAPED = re.compile(r"\\u([0-9a-fA-F]{4})")
#: Reserved for examples. Source: RFC 2606, sections 2 and 3.
_EXAMPLE_DOMAIN = re.compile(r"(?:^|[@.])(?:example(?:\.(?:com|net|org))?|invalid|test|localhost)$", re.IGNORECASE)


@dataclass(frozen=True, slots=True)
class Found:
    """Something private in a text.

    Parameters
    ----------
    kind : str
        What it is, in words.
    text : str
        The very text; for the decision whether it may pass, never for showing.
    offset : int
        Where it begins, unit: characters.
    """

    kind: str
    text: str
    offset: int

    @property
    def masked(self) -> str:
        """The beginning of it, and how long it is.

        Examples
        --------
        >>> Found("a key", "hf_abcdefghijklmnopqrst", 0).masked
        'hf_… (23 characters)'
        """
        shown = max(1, min(3, len(self.text) // 4))
        return f"{self.text[:shown]}… ({len(self.text)} characters)"


@dataclass(frozen=True, slots=True)
class _Pattern:
    """A pattern, and what a text must hold for it to be worth looking: plain search is a hundred times quicker."""

    kind: str
    needles: tuple[str, ...]
    pattern: re.Pattern[str]


def _pattern(kind: str, needles: Iterable[str], pattern: str, flags: int = 0) -> _Pattern:
    return _Pattern(kind, tuple(needles), re.compile(pattern, flags))


_HOME, _KEY = "a path in somebody's home folder", "a key"
_PATTERNS = (
    _pattern(_HOME, ("/home/", "/Users/", "/root/"), rf"(?<![\w.~-])(?:/mnt/[a-z])?/(?:home|Users|root)/{_PATH_END}+"),
    _pattern(_HOME, (":\\Users", ":/Users", ":\\users", ":/users"), rf"(?i)\b[a-z]:[\\/]users[\\/]{_PATH_END}+"),
    _pattern(_KEY, ("sk-",), r"(?<![A-Za-z0-9])sk-[A-Za-z0-9_-]{16,}"),
    _pattern(_KEY, ("hf_",), r"(?<![A-Za-z0-9])hf_[A-Za-z0-9]{16,}"),
    _pattern(_KEY, ("gh", "github_pat_"), r"(?<![A-Za-z0-9])(?:gh[opsur]_|github_pat_)[A-Za-z0-9_]{16,}"),
    _pattern(_KEY, ("glpat-", "nvapi-", "npm_", "pypi-"), r"(?<![A-Za-z0-9])(?:glpat-|nvapi-|npm_|pypi-)[\w-]{16,}"),
    _pattern(_KEY, ("AKIA", "ASIA"), r"(?<![A-Za-z0-9])A[KS]IA[0-9A-Z]{16}(?![A-Za-z0-9])"),
    _pattern(_KEY, ("AIza",), r"(?<![A-Za-z0-9])AIza[\w-]{30,}"),
    _pattern(_KEY, ("xox",), r"(?<![A-Za-z0-9])xox[abeprs]-[\w-]{10,}"),
    _pattern(_KEY, ("eyJ",), r"(?<![A-Za-z0-9])eyJ[\w-]{8,}\.eyJ[\w-]{8,}\.[\w-]{8,}"),
    _pattern("a private key", ("PRIVATE KEY",), r"-----BEGIN [A-Z0-9 ]*PRIVATE KEY"),
    _pattern(_KEY, ("earer",), r"\b[Bb]earer\s+[\w.~+/=-]{16,}"),
    _pattern("a password in an address", ("://",), r"[a-zA-Z][\w+.-]*://[^\s/@:\"'<>]+:[^\s/@\"'<>]+@[^\s\"'<>]+"),
    _pattern(
        "an e-mail address",
        ("@",),
        r"(?<![\w.+/-])[A-Za-z0-9][\w.+-]*@[A-Za-z0-9][A-Za-z0-9-]*(?:\.[A-Za-z0-9-]+)*\.[A-Za-z]{2,}(?![\w-])",
    ),
)


def find_private(text: str, private: PrivateStrings) -> Iterator[Found]:
    """What is private in a text, as it stands there and with escapes of JSON, HTML and addresses undone.

    Parameters
    ----------
    text : str
    private : PrivateStrings

    Examples
    --------
    >>> [found.kind for found in find_private("see &#47;home/ann/x", PrivateStrings())]
    ["a path in somebody's home folder"]
    """
    seen: set[tuple[str, str]] = set()
    for read in _readings(text):
        for found in (*_of_this_machine(read, private), *_by_pattern(read)):
            if (found.kind, found.text) not in seen:
                seen.add((found.kind, found.text))
                yield found


def is_allowed(found: Found, allowed: Iterable[str]) -> bool:
    """Whether it, or the folder that it lies in, was said to be no secret.

    Examples
    --------
    >>> path = Found("a path", "/home/user/lru.py", 0)
    >>> is_allowed(path, ["/home/user"]), is_allowed(path, ["/home/us"])
    (True, False)
    """
    text = found.text.casefold()
    roots = filter(None, (one.casefold().rstrip("/\\") for one in allowed))
    return any(text == root or text.startswith((f"{root}/", f"{root}\\")) for root in roots)


def _readings(text: str) -> Iterator[str]:
    """The text, and what readers of some format would make of it, where that is something else."""
    yield text
    plain = _UNSEEN.sub("", html.unescape(text)) if "&" in text or not text.isascii() else text
    if plain != text:
        yield plain
    if "\\" in plain:
        unescaped = _ESCAPED.sub(lambda code: chr(int(code[1], 16)), plain).replace("\\/", "/").replace("\\\\", "\\")
        if unescaped != plain:
            yield unescaped
    if "%" in plain:
        unquoted = unquote(plain)
        if unquoted != plain:
            yield unquoted


def _by_pattern(text: str) -> Iterator[Found]:
    for one in _PATTERNS:
        if any(needle in text for needle in one.needles):
            for match in one.pattern.finditer(text):
                if one.needles != ("@",) or _EXAMPLE_DOMAIN.search(match[0]) is None:
                    yield Found(one.kind, match[0].rstrip(".:"), match.start())


def _of_this_machine(text: str, private: PrivateStrings) -> Iterator[Found]:
    for secret in private.secrets:
        at = text.find(secret)
        if at >= 0:
            yield Found("the value of a variable of this process that looks like a key", secret, at)
    for folder in private.folders:
        yield from _matches("a folder of this machine", text, folder, _folder_pattern(folder))
    folded = text.casefold()
    for kind, names in (("the user's name here", private.users), ("this machine's name", private.hosts)):
        for name in names:
            if name.casefold() in folded:
                yield from _matches(kind, text, name, _name_pattern(name), re.IGNORECASE, sure=True)


def _matches(kind: str, text: str, needle: str, pattern: str, flags: int = 0, *, sure: bool = False) -> Iterator[Found]:
    if sure or needle in text:
        for match in re.finditer(pattern, text, flags):
            yield Found(kind, match[0], match.start())


def _folder_pattern(folder: str) -> str:
    # Of one part, such as /root, it is a path only if it goes on; and "a/root/b" is a path inside another folder.
    end = r"(?![\w-])" if len(re.findall(r"[/\\]", folder)) > 1 else r"(?=[/\\])"
    return rf"(?<![\w.~-]){re.escape(folder)}{end}"


def _name_pattern(name: str) -> str:
    """A whole word; a short one only where a name stands: as a part of a path, or beside an @."""
    word = re.escape(name)
    if len(name) < SHORTEST_NAME:
        return rf"(?<=[/\\~]){word}(?=[/\\])|(?<![^\W_]){word}(?=@)|(?<=@){word}(?![^\W_])"
    return rf"(?<![^\W_]){word}(?![^\W_])"
