"""Damaged content, by a random generator: bytes, JSON and YAML documents, and text by tokens."""

from __future__ import annotations

import copy
import gzip
import json
import re
from collections.abc import Callable
from random import Random
from typing import Any

import yaml

_ODD_VALUES: tuple[Callable[[Random], Any], ...] = (
    lambda _: None,
    lambda _: True,
    lambda _: -1,
    lambda _: 0,
    lambda _: 1.5,
    lambda _: 10**400,
    lambda _: 2**63,
    lambda _: 1e308,
    lambda _: float("inf"),
    lambda _: "",
    lambda _: "inf",
    lambda rng: "x" * rng.choice([300, 20_000]),
    lambda _: "\x1b]0;title\x07\u202e\ud800",
    lambda _: '<@mesh, [{"data"}]>',
    lambda rng: _nested(rng.choice([5, 40, 70])),  # three at once are still written
    lambda _: [],
    lambda _: {},
    lambda rng: [rng.randrange(10) for _ in range(100)],
)
_ODD_NUMBERS = ("0", "-1", "1", "3", "99999999999", "9223372036854775808", "1e999", "0x7fffffff")
_TOKEN = re.compile(r'"[^"\n]*"|tensor<[^>\n]*>|[%@][\w.]+|[A-Za-z_.]+|\d+|\s+|.', re.DOTALL)


def _nested(levels: int) -> Any:
    found: Any = 1
    for _ in range(levels):
        found = [found]
    return found


def damaged_bytes(content: bytes, rng: Random) -> bytes:
    """A few bytes changed, moved, doubled or cut off."""
    data = bytearray(content)
    for _ in range(rng.choice([1, 1, 2, 8])):
        at = rng.randrange(len(data) + 1)
        end = min(len(data), at + rng.choice([1, 2, 16, 400]))
        match rng.randrange(6):
            case 0 if at < len(data):
                data[at] ^= 1 << rng.randrange(8)
            case 1:
                del data[at:end]
            case 2:
                data[at:at] = rng.randbytes(rng.choice([1, 4, 64]))
            case 3:
                data[at:at] = data[at:end] * rng.choice([1, 50])
            case 4:
                del data[at:]
            case _:
                data[at:end] = b"\0" * (end - at)
    return bytes(data)


def damaged_document(document: Any, rng: Random) -> Any:
    """A document with a few of its members replaced, removed, doubled, renamed or exchanged.

    Some are replaced by members of the same type, which readers do not see at once.
    """
    found = copy.deepcopy(document)
    for _ in range(rng.choice([1, 1, 1, 3])):
        places = _places(found)
        if not places:
            break
        holder, key = rng.choice(places)
        match rng.randrange(8):
            case 0:
                del holder[key]
            case 1 if isinstance(holder, list):
                holder.insert(key, copy.deepcopy(holder[key]))
            case 1:
                holder[f"{key}\x07"] = holder.pop(key)
            case 2:
                other_holder, other_key = rng.choice(places)
                holder[key] = copy.deepcopy(other_holder[other_key])
            case 3 | 4:
                kind = type(holder[key])
                like = [other[name] for other, name in places if type(other[name]) is kind]
                holder[key] = copy.deepcopy(rng.choice(like))
            case _:
                holder[key] = rng.choice(_ODD_VALUES)(rng)
    return found


def _places(document: Any) -> list[tuple[Any, Any]]:
    places: list[tuple[Any, Any]] = []
    left = [document]
    while left:
        holder = left.pop()
        keys: Any = ()
        if isinstance(holder, dict):
            keys = list(holder)
        elif isinstance(holder, list):
            keys = range(len(holder))
        places += [(holder, key) for key in keys]
        left += [holder[key] for key in keys]
    return places


def _kind(token: str) -> str:
    return "1" if token[0].isdigit() else "a" if token[0].isalpha() else token[0]


def damaged_text(text: str, rng: Random) -> str:
    """Text with a few of its tokens or lines removed, doubled, turned or replaced by others."""
    tokens = _TOKEN.findall(text)
    for _ in range(rng.choice([1, 1, 2, 5])):
        at = rng.randrange(len(tokens))
        match rng.randrange(9):
            case 0:
                del tokens[at]
            case 1:
                tokens[at:at] = [tokens[at]] * rng.choice([1, 30])
            case 2:
                tokens[at] = rng.choice(tokens)
            case 5 | 6 | 7:
                tokens[at] = rng.choice([one for one in tokens if _kind(one) == _kind(tokens[at])])
            case 3:
                numbers = [i for i, token in enumerate(tokens) if token.isdigit()]
                tokens[rng.choice(numbers or [at])] = rng.choice(_ODD_NUMBERS)
            case 4:
                lines = "".join(tokens).split("\n")
                line = rng.choice(lines)
                lines.insert(rng.randrange(len(lines)), line)
                tokens = _TOKEN.findall("\n".join(lines))
            case _:
                end = min(len(tokens), at + rng.randrange(1, 30))
                tokens[at:end] = tokens[at:end][::-1]
    return "".join(tokens)


def damaged_json(content: bytes, rng: Random) -> bytes:
    """A JSON document damaged as a document, as text, or as bytes; packed where it was."""
    is_packed = content.startswith(b"\x1f\x8b")
    plain = gzip.decompress(content) if is_packed else content
    match rng.randrange(4):
        case 0:
            return damaged_bytes(content, rng)
        case 1:
            plain = damaged_text(plain.decode(), rng).encode()
        case _:
            plain = json.dumps(damaged_document(json.loads(plain), rng)).encode()
    return gzip.compress(plain, 1, mtime=0) if is_packed else plain


_ODD_YAML = (
    "!!timestamp x",
    "!!python/object/apply:os.getcwd []",
    "!!binary aGk=",
    "2001-99-99",
    "9" * 5000,
    "&a [*a]",
    "*gone",
    "0x" + "f" * 5000,
    "{" * 200,
    "!!set {a, b}",
    "<<: 1",
    "? [1]\n: 2",
    "1:2:3",
    "~",
    '"\\e[31m"',
)


def damaged_yaml(content: bytes, rng: Random) -> bytes:
    """A YAML document damaged as a document, in one value, as text, or as bytes."""
    match rng.randrange(4):
        case 0:
            return damaged_bytes(content, rng)
        case 1:
            return damaged_text(content.decode(), rng).encode()
        case 2:
            lines = content.decode().split("\n")
            at = rng.randrange(len(lines))
            key, colon, _ = lines[at].partition(": ")
            lines[at] = f"{key}{colon}{rng.choice(_ODD_YAML)}"
            return "\n".join(lines).encode()
        case _:
            changed = damaged_document(yaml.safe_load(content), rng)
            return yaml.safe_dump(changed, allow_unicode=True).encode(errors="surrogatepass")


def damaged_module(content: bytes, rng: Random) -> bytes:
    """A module damaged as text where it is text, or as bytes."""
    if content.startswith(b"ML\xefR") or rng.randrange(4) == 0:
        return damaged_bytes(content, rng)
    return damaged_text(content.decode(), rng).encode(errors="surrogatepass")
