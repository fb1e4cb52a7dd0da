"""What must not be stored, taken out of JSON values before they are: a ready-made hook for `turnkeep.open(redact=…)`.

A hook is any function from a JSON value to the one that is stored in its place. It is given each message, tool call,
tool result and state, each body that is posted, and titles, tags and metadata. It must be deterministic, and leave
alone what it has made: a retry is compared with what was stored.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from typing import Any, Final

from turnkeep.errors import InvalidInputError

__all__ = ["Patterns", "Redact", "default", "secrets"]

Redact = Callable[[Any], Any]
"""A hook: gets a JSON value of its own and gives the one to be stored."""

REPLACEMENT: Final = "[redacted]"
_ROUNDS: Final = 8

# What a secret is called, at the end of a name: AWS_SECRET_ACCESS_KEY, X-API-Key, db_password.
_NAME: Final = (
    r"(?:passw(?:or)?d|passphrase|secret(?:[_-]?access)?(?:[_-]?key)?|(?:api|access|private)[_-]?key|token"
    r"|(?<=[_-])pass(?=[\"'\\=]))"
)
_NEEDLES: Final = ("passw", "passphrase", "_pass", "-pass", "secret", "key", "token")
# What stands between a name and its value. Types and constants are none: code stays as it is.
_IS: Final = (
    r"(?:=|[ \t]{0,4}(?::[ \t]{0,4}(?:str|string|bytes)[ \t]{1,4})?=(?!=)[ \t]{0,4}(?!@C)"
    r"|[ \t]{0,4}:(?!:|//)[ \t]{0,4}(?!@C))"
).replace("@C", r"(?:null|none|nil|true|false|undefined|str|string|bytes|any)(?![^\s,;)}\]&|'\"])")
# A value: in quotes, also in those of a string within a text of JSON, and up to a space. No quote that ends such a
# string, and no half of an escape, is taken with it.
_WORD: Final = (
    r"(?:'(?![\s,:;)}\]]|\Z)(?:[^'\"\\\n]+|\\.)+'?|\"(?![\s,:;)}\]]|\Z)(?:[^\"\\\n]+|\\.)+\"?"
    r"|\\\"(?:[^\"\\]+|\\[^\"])+(?:\\\")?|(?=[^\s&;,'\"\\]))(?:[^\s&;,'\"\\]+|\\\\|\\(?![\"'\\]))*"
)
# Each with the texts of which one must be there, in small letters, for it to be worth looking. Every repetition is
# bounded or can't start twice in the same run of characters, so that no text takes time by its square.
_SECRETS: Final[tuple[tuple[tuple[str, ...], str], ...]] = (
    (("sk-",), r"sk-(?<![A-Za-z0-9]sk-)[A-Za-z0-9_-]{16,}"),
    (("akia", "asia"), r"(?:AKIA|ASIA)[0-9A-Z]{16}(?![0-9A-Z])"),
    (("ghp_", "gho_", "ghu_", "ghs_", "ghr_"), r"gh[pousr]_[A-Za-z0-9]{20,}"),
    (("github_pat_",), r"github_pat_[A-Za-z0-9_]{20,}"),
    (("glpat-",), r"glpat-[A-Za-z0-9_-]{16,}"),
    (("xox",), r"xox[abeoprs]-[A-Za-z0-9-]{10,}"),
    (("aiza",), r"AIza[A-Za-z0-9_-]{35}"),
    (("hf_",), r"hf_(?<![A-Za-z0-9]hf_)[A-Za-z0-9]{20,}"),
    (("k_live_", "k_test_"), r"[rs]k_(?:live|test)_(?<![A-Za-z0-9].{8})[A-Za-z0-9]{10,}"),
    (("npm_",), r"npm_(?<![A-Za-z0-9]npm_)[A-Za-z0-9]{20,}"),
    (("eyj",), r"eyJ(?<![A-Za-z0-9_-]eyJ)[A-Za-z0-9_-]{8,}\.eyJ[A-Za-z0-9_-]{8,}\.[A-Za-z0-9_-]{8,}"),
    (("bearer",), r"(?P<keep>[Bb][Ee][Aa][Rr][Ee][Rr][ \t]{1,4})[A-Za-z0-9._~+/=-]{16,}"),
    (
        ("private key",),
        r"-----BEGIN (?:[A-Z0-9]{1,20} ){0,4}PRIVATE KEY-----(?:[^-]|-(?!----)){0,65536}"
        r"(?:-----END (?:[A-Z0-9]{1,20} ){0,4}PRIVATE KEY-----)?",
    ),
    (("://",), r"(?P<keep>://[^\s/:@\"']{0,128}:)[^\s/@\"']{1,256}(?=@)"),
    (
        ("authorization",),
        r"(?i:(?P<keep>authorization[\"']?[ \t]{0,4}[:=][ \t]{0,4}[\"']?(?:basic|bearer|token|apikey)[ \t]{1,4}))"
        r"[^\s\"',;\\]+",
    ),
    # A member in a text of JSON or Python, up to the quote that ends it; then the same within a string of such a text.
    (
        _NEEDLES,
        rf"(?i:(?P<keep>{_NAME}[\"'][ \t]{{0,4}}:\s{{0,4}}[\"']))"
        r"(?:(?<=\")(?:[^\"\\]+|\\[\s\S]?)+|(?<=')(?:[^'\\]+|\\[\s\S]?)+)",
    ),
    (
        _NEEDLES,
        rf"(?i:(?P<keep>{_NAME}\\\"[ \t]{{0,4}}:[ \t]{{0,4}}\\\"))(?:[^\"\\]+|\\\\(?:\\[\s\S]|[^\\\"])|\\[^\"\\])+",
    ),
    (_NEEDLES, rf"(?i:(?P<keep>{_NAME}{_IS})){_WORD}"),
)
_KEYS: Final = frozenset({"authorization", "token"})
_KEY: Final = re.compile(
    rf"(?i:{_NAME}|[_-]pass)\Z(?<!token)(?<!TOKEN)|(?i:(?:access|api|auth|bot|id|refresh|session)[_-]?token)\Z"
)


class Patterns:
    """Puts `replacement` in the place of whatever a regular expression finds, in all strings and keys of a value.

    A pattern is a regular expression as text or compiled; what its group `keep` finds at the beginning stays. Members
    of objects whose name is one of `keys`, compared without case, "-" and "_", lose a string they hold altogether. Own
    patterns are run as they are: see that none takes long on a long text, and that none finds the replacement.
    """

    def __init__(
        self, *patterns: str | re.Pattern[str], keys: Sequence[str] = (), replacement: str = REPLACEMENT
    ) -> None:
        if not isinstance(replacement, str):
            raise InvalidInputError(f"replacement: expected a text, got {type(replacement).__name__}")
        self._found: list[tuple[tuple[str, ...], re.Pattern[str]]] = []
        for index, pattern in enumerate(patterns):
            try:
                self._found.append(((), re.compile(pattern)))
            except (re.error, TypeError) as error:
                raise InvalidInputError(f"patterns[{index}]: no regular expression: {error}") from None
        self._keys = frozenset(map(_plain, keys))
        self._key: re.Pattern[str] | None = None
        self._rounds = 1
        self._replacement = replacement

    def __call__(self, value: Any) -> Any:
        """Give the value that is stored in its place."""
        top: list[Any] = [value]
        left: list[Any] = [top]
        while left:  # values may be nested more deeply than calls
            holder = left.pop()
            if isinstance(holder, dict):
                self._members(holder)
            for key, one in list(holder.items() if isinstance(holder, dict) else enumerate(holder)):
                if isinstance(one, str):
                    holder[key] = self._text(one)
                elif isinstance(one, dict | list):
                    holder[key] = one.copy()
                    left.append(holder[key])
        return top[0]

    def _members(self, holder: dict[str, Any]) -> None:
        """Redact the names of an object's members, and what some of them hold."""
        members = list(holder.items())
        holder.clear()
        for key, one in members:
            name = found = self._text(key)
            number = 1
            while name in holder:
                number += 1
                name = f"{found} {number}"
            hidden = isinstance(one, str) and one and (_plain(key) in self._keys or self._named(key))
            holder[name] = self._replacement if hidden else one

    def _named(self, key: str) -> bool:
        return self._key is not None and self._key.search(key) is not None

    def _text(self, text: str) -> str:
        for _ in range(self._rounds):  # what one pattern has left may be what another looks for
            before, text = text, self._once(text)
            if text == before:
                break
        return text

    def _once(self, text: str) -> str:
        small: str | None = None
        for needles, pattern in self._found:
            if needles:
                small = text.lower() if small is None else small
                if not any(needle in small for needle in needles):
                    continue
            text = pattern.sub(self._replaced, text)
        return text

    def _replaced(self, found: re.Match[str]) -> str:
        return (found["keep"] or "") + self._replacement if "keep" in found.re.groupindex else self._replacement


def secrets(*patterns: str | re.Pattern[str], keys: Sequence[str] = ()) -> Patterns:
    """Give a hook that takes out secrets that are known by their shape, and what `patterns` and `keys` say besides.

    Keys of OpenAI's and Anthropic's shape (`sk-…`), of AWS, GitHub, GitLab, Slack, Google, Hugging Face, Stripe and
    npm, `Authorization` headers, JSON Web Tokens, private keys as PEM, passwords in URLs and DSNs, what is said to be
    one (`password: …`, `DB_PASS=…`, `X-API-Key: …`), and texts of members such as `api_key`, `token` and `password`.
    What has no such shape is not found.
    """
    made = Patterns(*patterns, keys=[*_KEYS, *keys])
    made._key, made._rounds = _KEY, _ROUNDS
    made._found[:0] = [(needles, re.compile(pattern)) for needles, pattern in _SECRETS]
    return made


def _plain(key: str) -> str:
    return key.lower().replace("-", "").replace("_", "")


default: Final = secrets()
"""The hook that `secrets()` gives, by a name for the command line: `--redact turnkeep.redaction:default`."""
