"""Which rung this process runs its expert layers on: chosen once, tested first, and reported."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

import torch

from sglang_mi300a.errors import UserError
from sglang_mi300a.hooking import resolve
from sglang_mi300a.moe import selftest
from sglang_mi300a.moe.rungs import ExpertSizes, Rung, TellsFacts

SELF_TEST_EXPERTS = selftest.NUM_EXPERTS

NAMES = ("hip", "triton", "torch")
"""Best first."""

ORDER: Mapping[str, tuple[str, ...]] = {"gfx942": NAMES, "cpu": ("torch",)}
"""Rungs that are tried on each of the package's targets."""

Make = Callable[[], Rung]


@dataclass(frozen=True)
class Tried:
    """One rung that was looked at.

    Attributes:
        rung: Its name.
        outcome: What came of it, in words.
    """

    rung: str
    outcome: str


@dataclass(frozen=True, eq=False)
class Choice:
    """The rung of a process.

    Attributes:
        rung: The rung.
        test: Its self-test.
        tried: Those before it in the ladder.
        facts: What it adds to the report.
    """

    rung: Rung
    test: selftest.SelfTest
    tried: tuple[Tried, ...] = ()
    facts: dict[str, str] = field(default_factory=dict)

    def report(self) -> dict[str, Any]:
        """Return what the boot report says, plain JSON values."""
        said = "".join(f"{name} {value}, " for name, value in self.facts.items())
        line = f"expert layer on {self.rung.name}, {said}{self.test.in_words()}"
        for one in self.tried:
            line += f"; not {one.rung}: {one.outcome}"
        return {
            "rung": self.rung.name,
            "self_test": asdict(self.test),
            "tried": [asdict(one) for one in self.tried],
            "facts": self.facts,
            "line": line,
        }


def allowed_rungs(target: str, allowed: str) -> tuple[str, ...]:
    """Return the rungs that may be used, best first.

    Args:
        target: ``gfx942`` or ``cpu``.
        allowed: Lowest rung that the user allows there.
    """
    order = ORDER[target]
    return order[: order.index(allowed) + 1] if allowed in order else order


@dataclass(frozen=True, eq=False)
class Examined:
    """What was found of one rung on one device.

    Attributes:
        rung: Its name.
        reason: Why it cannot run, or "".
        test: Its self-test, where it can.
        instance: The rung, where it can.
    """

    rung: str
    reason: str = ""
    test: selftest.SelfTest | None = None
    instance: Rung | None = None

    @property
    def passed(self) -> bool:
        """Whether it can run and is right."""
        return self.test is not None and self.test.passed

    @property
    def is_wrong(self) -> bool:
        """Whether it can run and is not right."""
        return self.test is not None and not self.test.passed

    def in_words(self) -> str:
        """Return the finding in one phrase."""
        return self.reason if self.test is None else self.test.in_words()

    def report(self) -> dict[str, Any]:
        """Return plain JSON values."""
        test = None if self.test is None else {**asdict(self.test), "passed": self.test.passed}
        return {"rung": self.rung, "cannot_run": self.reason, "self_test": test}


def examine_one(name: str, make: Make, device: torch.device, sizes: ExpertSizes) -> Examined:
    """Return whether a rung can run such layers on a device, and gives the reference's result."""
    try:
        rung = make()
    except ImportError as error:
        return Examined(name, f"not importable ({error})")
    reason = rung.can_run(device, sizes)
    if reason is not None:
        return Examined(name, reason)
    return Examined(name, test=selftest.run(rung, device, sizes), instance=rung)


def examine(device: torch.device, sizes: ExpertSizes, rungs: Mapping[str, Make]) -> list[Examined]:
    """Return :func:`examine_one` of each rung, best first."""
    return [examine_one(name, rungs[name], device, sizes) for name in NAMES]


def choose(
    target: str,
    device: torch.device,
    sizes: ExpertSizes,
    *,
    allowed: str,
    rungs: Mapping[str, Make],
) -> Choice:
    """Return the best allowed rung that can run and passes its self-test.

    What is passed over is said on stderr, with the reason.

    Args:
        target: ``gfx942`` or ``cpu``.
        device: Where the weights will be.
        sizes: Of the layers.
        allowed: Lowest rung that the user allows.
        rungs: How each is made.

    Raises:
        UserError: There is none.
    """
    tried: list[Tried] = []
    for name in allowed_rungs(target, allowed):
        found = examine_one(name, rungs[name], device, sizes)
        if found.passed:
            assert found.instance is not None
            assert found.test is not None
            rung = found.instance
            facts = rung.facts(device) if isinstance(rung, TellsFacts) else {}
            return Choice(rung, found.test, tuple(tried), facts)
        words = found.in_words()
        tried.append(Tried(name, words))
        print(f"sglang-mi300a: expert layer not on {name}: {words}", file=sys.stderr, flush=True)
    raise refusal(target, tried, allowed)


def refusal(target: str, tried: Sequence[Tried], allowed: str) -> UserError:
    """Return the error where no allowed rung works."""
    lower = [name for name in ORDER[target] if name not in allowed_rungs(target, allowed)]
    remedy = "correct what the first names (`sglang-mi300a kernels selftest` repeats the test)"
    if lower:
        remedy += f", or serve slower: --allow-rung {' or '.join(lower)}"
    return UserError(
        "expert layer",
        found="; ".join(f"{one.rung}: {one.outcome}" for one in tried),
        allowed=f"a rung that works, of {', '.join(allowed_rungs(target, allowed))}",
        do=remedy,
    )


_of_process: dict[torch.device, Choice] = {}


def of_process(
    target: str,
    device: torch.device,
    sizes: ExpertSizes,
    *,
    allowed: str,
    rungs: Mapping[str, Make],
) -> Choice:
    """Return the rung that this process took, or takes now; see :func:`choose`.

    Raises:
        UserError: There is none, or the one that was taken cannot run layers of these sizes too.
    """
    taken = _of_process.get(device)
    if taken is None:
        taken = choose(target, device, sizes, allowed=allowed, rungs=rungs)
        _of_process[device] = taken
        return taken
    reason = taken.rung.can_run(device, sizes)
    if reason is not None:
        raise refusal(target, [Tried(taken.rung.name, reason)], allowed)
    return taken


def taken(device: torch.device) -> Rung | None:
    """Return the rung that this process took on a device, or None if it has not chosen."""
    choice = _of_process.get(device)
    return None if choice is None else choice.rung


def forget() -> None:
    """Let the process choose again (for tests)."""
    _of_process.clear()


def makers(max_tokens: int, intermediate_dtype: torch.dtype) -> dict[str, Make]:
    """Return how each rung is made; a rung is imported when it is its turn.

    Args:
        max_tokens: Tokens of one launch at most.
        intermediate_dtype: What the torch rung rounds the inner values to.
    """
    room = "sglang_mi300a.moe"

    def make_torch() -> Rung:
        rung: Rung = resolve(f"{room}.torch_rung:TorchRung")(intermediate_dtype)
        return rung

    def make_triton() -> Rung:
        rung: Rung = resolve(f"{room}.triton_rung:TritonRung")()
        return rung

    def make_hip() -> Rung:
        rung: Rung = resolve(f"{room}.hip_rung:HipRung")(max_tokens)
        return rung

    return {"hip": make_hip, "triton": make_triton, "torch": make_torch}
