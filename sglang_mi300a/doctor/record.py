"""Facts as JSON: written with nothing private in it, read back strictly."""

from __future__ import annotations

import functools
import json
import re
import types
from collections.abc import Iterable, Mapping
from dataclasses import asdict, fields, is_dataclass
from pathlib import Path
from typing import Any, Union, cast, get_args, get_origin, get_type_hints

from sglang_mi300a.doctor import facts as facts_module
from sglang_mi300a.doctor.facts import SCHEMA, Facts
from sglang_mi300a.errors import UserError

WITHHELD = "(withheld)"
_PATH = re.compile(r"(?<![\w<>.-])/[^\s,;:'\"<>()]+")
_PUBLIC_PATH = re.compile(r"/dev/(kfd|dri|shm)|/proc/sys/[\w/]+|/sys/module/[\w/]+|/health")
"""Paths that every machine has."""


def as_data(facts: Facts, private: Iterable[str] = ()) -> dict[str, Any]:
    """Return facts as plain JSON values, less what is private.

    Args:
        facts: Any.
        private: Words that must not appear: the user's name, the host's, and the like.
    """
    return {"schema": SCHEMA, **scrubbed(asdict(facts), private)}


def scrubbed(value: Any, private: Iterable[str]) -> Any:
    """Return JSON values with paths and private words taken out of every text, keys included."""
    telling = {word for word in private if len(word) > 1} - _vocabulary()
    return _withheld(value, sorted(telling, key=len, reverse=True))


@functools.cache
def _vocabulary() -> frozenset[str]:
    """Return the record's own words; a folder of such a name tells nobody anything."""
    kinds = [one for one in vars(facts_module).values() if is_dataclass(one)]
    return frozenset(one.name for kind in kinds for one in fields(kind)) | {"jit", "shm", "state"}


def render(facts: Facts, private: Iterable[str] = ()) -> str:
    """Return facts as JSON text; see :func:`as_data`."""
    return json.dumps(as_data(facts, private), indent=1, sort_keys=True) + "\n"


def without_private(text: str, words: Iterable[str]) -> str:
    """Return a text with paths and whole words from ``words`` taken out."""
    for word in words:
        text = re.sub(rf"(?<![A-Za-z0-9]){re.escape(word)}(?![A-Za-z0-9])", WITHHELD, text)
    return _PATH.sub(lambda found: found[0] if _PUBLIC_PATH.fullmatch(found[0]) else WITHHELD, text)


def _withheld(value: Any, words: list[str]) -> Any:
    if isinstance(value, str):
        return without_private(value, words)
    if isinstance(value, dict):
        return {without_private(key, words): _withheld(one, words) for key, one in value.items()}
    if isinstance(value, (list, tuple)):
        return [_withheld(one, words) for one in value]
    return value


def load(path: Path) -> Facts:
    """Return the facts in a file.

    Raises:
        UserError: No such file, another schema, or fields that do not belong there.
    """
    try:
        text = path.read_text(encoding="utf-8")
    except OSError as error:
        raise _refused(path, f"not readable ({error.strerror})", "a file of --record") from error
    except UnicodeDecodeError as error:
        raise _refused(path, f"not UTF-8 at byte {error.start}", "a file of --record") from error
    return parse(text, path)


def parse(text: str, where: Path | str) -> Facts:
    """Return the facts in a text; ``where`` is named in errors.

    Raises:
        UserError: As :func:`load`.
    """
    try:
        data = json.loads(text)
    except ValueError as error:
        raise _refused(where, f"no JSON ({error})", "a file of --record") from error
    schema = data.get("schema") if isinstance(data, dict) else None
    if schema != SCHEMA:
        do = "judge it with the version of this package that recorded it, or record it again"
        raise _refused(
            where, f"schema {schema!r}", f"schema {SCHEMA}, which this version reads", do
        )
    del data["schema"]
    return cast("Facts", _read(Facts, data, str(where), ""))


def _read(kind: Any, value: Any, where: str, at: str) -> Any:
    """Return a value as ``kind``: a dataclass, tuple, dict, optional, or plain JSON type."""
    origin = get_origin(kind)
    if is_dataclass(kind):
        return _read_dataclass(kind, value, where, at)
    if origin in (Union, types.UnionType):
        inner = next(one for one in get_args(kind) if one is not type(None))
        return None if value is None else _read(inner, value, where, at)
    if origin is tuple and isinstance(value, list):
        inner, *rest = get_args(kind)
        if rest == [...]:
            return tuple(_read(inner, one, where, f"{at}[{i}]") for i, one in enumerate(value))
        if len(value) == 1 + len(rest):
            kinds = (inner, *rest)
            return tuple(_read(k, v, where, at) for k, v in zip(kinds, value, strict=True))
    if origin is dict and isinstance(value, Mapping):
        inner = get_args(kind)[1]
        return {key: _read(inner, one, where, f"{at}.{key}") for key, one in value.items()}
    if kind is float and type(value) in (int, float):
        return float(value)
    if origin is None and type(value) is kind:
        return value
    name = getattr(kind, "__name__", str(kind))
    raise _refused(where, f"{at[1:]} {value!r}"[:80], f"{at[1:]} of type {name}")


_hints = functools.lru_cache(maxsize=None)(get_type_hints)


def _read_dataclass(kind: Any, value: Any, where: str, at: str) -> Any:
    if not isinstance(value, Mapping):
        raise _refused(where, f"{at[1:] or 'record'} {value!r}"[:80], "an object")
    hints = _hints(kind)
    known = {field.name for field in fields(kind)}
    if unknown := sorted(set(value) - known):
        raise _refused(where, f"unknown {', '.join(unknown)} in {at[1:] or 'the record'}", "none")
    given = {key: _read(hints[key], one, where, f"{at}.{key}") for key, one in value.items()}
    try:
        return kind(**given)
    except TypeError as error:  # one that has no default is missing
        raise _refused(where, f"{at[1:]}: {error}", "every field") from error


def _refused(where: Path | str, found: str, allowed: str, do: str = "") -> UserError:
    return UserError(
        f"--fixture {where}", found=found, allowed=allowed, do=do or "record the machine again"
    )
