"""Faked event timings: each launch goes through the launcher; how long it took is made up."""

from collections.abc import Callable

from sglang_mi300a.moe.kernels.prediction import Shape

TINY = Shape("tiny", 4, 256)
"""Few experts of the true size."""

OTHER_WORK_US = 5000.0
"""Of work that launches no kernel of ours: a rung below."""


class FakedTimer:
    """Times by kernel name and workgroups; counts what was timed.

    Args:
        hip: The stand-in runtime.
        us_of: Time of a launch, given its kernel's name and its workgroups.
    """

    def __init__(self, hip, us_of: Callable[[str, int], float]) -> None:
        self._hip = hip
        self._us_of = us_of
        self.timed: list[tuple[str, int]] = []

    def samples_us(self, work, count: int) -> list[float]:
        before = len(self._hip.launches)
        work()
        launched = self._hip.launches[before:]
        if not launched:
            return [OTHER_WORK_US] * count
        (one,) = launched
        self.timed.append((one.kernel, one.grid[0]))
        # The middle one is what was asked for.
        us = self._us_of(*self.timed[-1])
        return sorted(us * (1 + (number - count // 2) / 100) for number in range(count))
