"""In what two artifacts differ, by their manifests; no weights are read."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, fields

from sglang_mi300a.artifact_manifest import Manifest, TensorFacts

_BY_CONTENT = ("tensors", "files", "copied", "source_files")
_Key = tuple[int, str, str]


@dataclass(frozen=True)
class Change:
    """A fact that two artifacts state differently.

    Attributes:
        what: Name of the fact.
        left: The first artifact's.
        right: The second's.
    """

    what: str
    left: str
    right: str


@dataclass(frozen=True)
class Comparison:
    """What differs.

    Attributes:
        facts: Facts about the whole, and files by name ("absent" where one artifact lacks it).
        only_left: Tensors that only the first has, as ``rank 0 draft fc.weight``.
        only_right: Tensors that only the second has.
        other_kind: Tensors of another type or shape.
        other_content: Tensors of the same type and shape that hold other bytes.
        elsewhere: Equal tensors that lie in another file or at another offset.
    """

    facts: tuple[Change, ...]
    only_left: tuple[str, ...]
    only_right: tuple[str, ...]
    other_kind: tuple[Change, ...]
    other_content: tuple[str, ...]
    elsewhere: tuple[str, ...]

    @property
    def same_weights(self) -> bool:
        """Whether every rank is given the same parameters, to the byte."""
        return not (self.only_left or self.only_right or self.other_kind or self.other_content)

    @property
    def is_equal(self) -> bool:
        """Whether nothing differs at all."""
        return self.same_weights and not self.facts and not self.elsewhere


def compare(left: Manifest, right: Manifest) -> Comparison:
    """Return in what two manifests differ."""
    mine, theirs = _by_key(left.tensors), _by_key(right.tensors)
    both = [(key, mine[key], theirs[key]) for key in mine if key in theirs]
    same_kind = [(key, a, b) for key, a, b in both if _kind(a) == _kind(b)]
    same = [(key, a, b) for key, a, b in same_kind if a.xxh3_128 == b.xxh3_128]
    return Comparison(
        facts=(*_facts(left, right), *_files(left, right)),
        only_left=tuple(_named(key) for key in mine if key not in theirs),
        only_right=tuple(_named(key) for key in theirs if key not in mine),
        other_kind=tuple(
            Change(_named(key), _kind(a), _kind(b)) for key, a, b in both if _kind(a) != _kind(b)
        ),
        other_content=tuple(_named(key) for key, a, b in same_kind if a.xxh3_128 != b.xxh3_128),
        elsewhere=tuple(
            _named(key) for key, a, b in same if (a.file, a.offset) != (b.file, b.offset)
        ),
    )


def _facts(left: Manifest, right: Manifest) -> Iterable[Change]:
    for field in fields(Manifest):
        a, b = getattr(left, field.name), getattr(right, field.name)
        if field.name not in _BY_CONTENT and a != b:
            yield Change(field.name, str(a), str(b))


def _files(left: Manifest, right: Manifest) -> Iterable[Change]:
    for what, ours, theirs in (
        ("copied", left.copied, right.copied),
        ("source", left.source_files, right.source_files),
    ):
        a = {file.name: f"{file.size} bytes, {file.xxh3_128}" for file in ours}
        b = {file.name: f"{file.size} bytes, {file.xxh3_128}" for file in theirs}
        for name in sorted({*a, *b}):
            if a.get(name) != b.get(name):
                yield Change(f"{what} {name}", a.get(name, "absent"), b.get(name, "absent"))


def _by_key(tensors: Iterable[TensorFacts]) -> dict[_Key, TensorFacts]:
    return {(tensor.rank, tensor.part, tensor.name): tensor for tensor in tensors}


def _named(key: _Key) -> str:
    rank, part, name = key
    return f"rank {rank} {part} {name}"


def _kind(tensor: TensorFacts) -> str:
    return f"{tensor.dtype} {list(tensor.shape)}"
