"""What ``--model-loader-extra-config`` may hold, for target and draft alike."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any, Literal, NoReturn

from sglang_mi300a.errors import UserError
from sglang_mi300a.weights.reading import DEFAULT_RING_BYTES, DEFAULT_THREADS

FLAG = "--model-loader-extra-config"

Verify = Literal["full", "sample", "off"]
VERIFY: tuple[Verify, ...] = ("full", "sample", "off")

SAMPLED_ALWAYS_BYTES = 1 << 20
SAMPLED_ONE_IN = 16


@dataclass(frozen=True)
class LoaderOptions:
    """How weights are read.

    Attributes:
        verify: ``"full"``: every byte of an artifact against its checksum. ``"sample"``: every
            tensor of at most 1 MiB and one in 16 of the others. ``"off"``: sizes only. A Hugging
            Face checkpoint has no checksums; its MXFP4 scales are always checked.
        ring_bytes: Bytes of all read buffers of a rank.
        threads: Reads in flight.
        ignore_tensors: Patterns of checkpoint tensors that may stay unused.
        read_into_parameters: Read an artifact straight into the parameters' memory instead of
            through the buffers, where that memory is the host's too (an APU, the CPU engine) and a
            probe at the start of the load shows that it works. Otherwise nothing changes.
    """

    verify: Verify = "full"
    ring_bytes: int = DEFAULT_RING_BYTES
    threads: int = DEFAULT_THREADS
    ignore_tensors: tuple[str, ...] = ()
    read_into_parameters: bool = False

    @classmethod
    def from_mapping(cls, given: Mapping[str, Any]) -> LoaderOptions:
        """Return the options in a mapping; what is not given has its default.

        Raises:
            UserError: An unknown key, or a value of the wrong kind.
        """
        known = [f.name for f in fields(cls)]
        unknown = sorted(set(given) - set(known))
        if unknown:
            _refuse(", ".join(unknown), ", ".join(known))
        verify = given.get("verify", cls.verify)
        if verify not in VERIFY:
            _refuse(f"verify {verify!r}", " or ".join(VERIFY))
        patterns = given.get("ignore_tensors", ())
        if isinstance(patterns, str) or not all(isinstance(p, str) for p in patterns):
            _refuse(f"ignore_tensors {patterns!r}", "a list of patterns")
        straight = given.get("read_into_parameters", cls.read_into_parameters)
        if type(straight) is not bool:
            _refuse(f"read_into_parameters {straight!r}", "true or false")
        return cls(
            verify=verify,
            ring_bytes=_positive(given, "ring_bytes", cls.ring_bytes),
            threads=_positive(given, "threads", cls.threads),
            ignore_tensors=tuple(patterns),
            read_into_parameters=straight,
        )

    def verifies(self, index: int, size: int) -> bool:
        """Return whether the tensor at ``index`` of a rank's list is checked.

        Args:
            index: Its place in the manifest's order.
            size: Its bytes.
        """
        if self.verify == "sample":
            return size <= SAMPLED_ALWAYS_BYTES or index % SAMPLED_ONE_IN == 0
        return self.verify == "full"


def _positive(given: Mapping[str, Any], name: str, default: int) -> int:
    value = given.get(name, default)
    if type(value) is not int or value < 1:
        _refuse(f"{name} {value!r}", "a positive whole number")
    return value


def _refuse(found: str, allowed: str) -> NoReturn:
    raise UserError(
        FLAG, found=found, allowed=allowed, do=f"correct the JSON given with {FLAG}, or drop it"
    )
