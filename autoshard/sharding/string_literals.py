"""String literals as MLIR writes and reads them."""

from __future__ import annotations

import re

from autoshard.errors import ShardingError
from autoshard.sharding.source import readable

# Half a surrogate pair is no text, save for those that stand for bytes that are not UTF-8.
PLAIN_CHARACTER = r'[^"\\\n\v\f\ud800-\udc7f\udd00-\udfff]'
STRING_PATTERN = rf'"(?:{PLAIN_CHARACTER}|\\(?:["\\nt]|[0-9a-fA-F]{{2}}))*"'
BARE_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_$.]*", re.ASCII)

_PLAIN_TEXT = re.compile(r"[ !#-\[\]-~]*")
_ESCAPE = re.compile(rb'\\(["\\nt]|[0-9a-fA-F]{2})')
_ESCAPED = {b'"': b'"', b"\\": b"\\", b"n": b"\n", b"t": b"\t"}


def quoted(text: str) -> str:
    """A string literal: printable ASCII as it is, other UTF-8 bytes as two hex digits.

    Raises:
        ShardingError: The text holds half a surrogate pair, which no encoding has bytes for.
    """
    if _PLAIN_TEXT.fullmatch(text):
        return f'"{text}"'
    try:
        encoded = text.encode("utf-8", "surrogateescape")
    except UnicodeEncodeError:
        raise ShardingError(
            "a name holds half a surrogate pair, which is not a character",
            where=f"name `{readable(text)}`",
            fix="name it with whole characters",
        ) from None
    parts = []
    for byte in encoded:
        char = chr(byte)
        if char == "\\":
            parts.append("\\\\")
        elif char != '"' and 0x20 <= byte < 0x7F:
            parts.append(char)
        else:
            parts.append(f"\\{byte:02X}")
    return f'"{"".join(parts)}"'


def unquoted(token: str) -> str:
    """The text of a string literal, quotes included in `token`."""
    if "\\" not in token:
        return token[1:-1]

    def replacement(match: re.Match[bytes]) -> bytes:
        found = match[1]
        return _ESCAPED[found] if found in _ESCAPED else bytes([int(found, 16)])

    raw = token[1:-1].encode("utf-8", "surrogateescape")
    return _ESCAPE.sub(replacement, raw).decode("utf-8", "surrogateescape")
