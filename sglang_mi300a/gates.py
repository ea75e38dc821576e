"""Two gates that prove SGLang really calls what was hooked. Neither is itself a hook.

Gate 1 runs in our weight loader, before the first byte: every required seam is live on this rank.
Gate 2 runs inside the served model's first forward passes (an attribute of the model instance that
the loader returns, taken away again afterwards): every required seam has been *called* on every
rank. It sits in the start-up warm-up request, so nothing of a user's is admitted before it.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from sglang_mi300a import boot_report, boot_timeline
from sglang_mi300a.boot_report import RankReport
from sglang_mi300a.errors import EXIT_BAD_INPUT, JudgedAgainst, UserError
from sglang_mi300a.hooking import HookError, Reliance, Stage, installed, other_plugins
from sglang_mi300a.rank_agreement import AllGather

# Which stages must have been reached once a forward of a mode is complete. The names are those of
# SGLang's ForwardMode.
_PROVED_BY: dict[str, tuple[Stage, ...]] = {
    "EXTEND": ("prefill",),
    "DECODE": ("decode",),
    "TARGET_VERIFY": ("verify", "draft"),
}
_BEFORE_ANY: tuple[Stage, ...] = ("start", "load", "pools")


@dataclass
class RankGates:
    """The gates of one rank process.

    Attributes:
        rank: Tensor-parallel rank.
        run_dir: Where the boot report goes.
        all_gather: Returns every rank's object, in rank order; called at the same points on all.
        proofs_wanted: Stages that must be proved before the gate is taken away.
        hooks_by_target: SGLang's own record of who hooks what, to report other plugins.
        facts: What rooms add to this rank's boot report.
        at_first_byte: What rooms look at when gate 1 is first passed, before any weight is read.
    """

    rank: int
    run_dir: Path
    all_gather: AllGather
    proofs_wanted: frozenset[Stage]
    hooks_by_target: Mapping[str, Sequence[Any]] = field(default_factory=dict)
    facts: dict[str, Any] = field(default_factory=dict)
    at_first_byte: list[Callable[[], None]] = field(default_factory=list)
    _live: dict[str, tuple[bool, str]] | None = None
    _completed: set[str] = field(default_factory=set)
    _proved: set[Stage] = field(default_factory=set)
    _stage: str = "plugin"
    _began: float = field(default_factory=time.monotonic)
    _reached_s: dict[str, float] = field(default_factory=dict)

    def report(
        self, stage: str | None = None, refusal: str = "", exit_code: int = EXIT_BAD_INPUT
    ) -> None:
        """Write this rank's boot report."""
        self._stage = stage or self._stage
        self._reached_s.setdefault(self._stage, round(time.monotonic() - self._began, 3))
        boot_report.write(
            self.run_dir,
            RankReport(
                rank=self.rank,
                pid=os.getpid(),
                stage=self._stage,
                seams=boot_report.states(self._live),
                refusal=refusal,
                exit_code=exit_code,
                facts={**boot_report.facts(), **self.facts},
                reached_s=dict(self._reached_s),
            ),
        )

    @contextmanager
    def refusing(self) -> Iterator[None]:
        """Put a refusal that leaves the block into this rank's boot report."""
        try:
            yield
        except (UserError, JudgedAgainst) as error:
            self.report("refused", str(error), error.exit_code)
            raise

    def before_first_byte(self) -> None:
        """Gate 1: check that every required seam of this rank is live.

        Raises:
            HookError: One is not, with its name and where SGLang's lookup leads instead.
        """
        self._live = {
            name: (is_up, note or self._others(name))
            for name, (is_up, note) in boot_report.liveness().items()
        }
        dead = [
            f"{name} ({note})"
            for name, (is_up, note) in self._live.items()
            if not is_up and installed()[name].seam.required
        ]
        if dead:
            raise self._refuse(
                f"hook {dead[0].split(' ')[0]}",
                found=f"registered but not live on rank {self.rank}: {'; '.join(dead)}",
                why="another plugin or an earlier import holds the original",
            )
        looks, self.at_first_byte = self.at_first_byte, []
        with self.refusing():
            for look in looks:
                look()
        boot_timeline.mark("set-up before weights")
        self.report("load")

    def _others(self, name: str) -> str:
        others = other_plugins(installed()[name], self.hooks_by_target)
        return f"its target is also hooked: {', '.join(others)}" if others else ""

    def guard_forward(self, model: Any) -> None:
        """Put gate 2 in front of ``model.forward`` of this instance, until it has passed."""
        original = model.forward

        def forward(*args: Any, **kwargs: Any) -> Any:
            mode = _mode_of(args, kwargs)
            self._prove(self._due())
            result = original(*args, **kwargs)
            self._completed.add(mode)
            if self.proofs_wanted <= self._proved:
                del model.forward
            return result

        model.forward = forward

    def _due(self) -> list[Stage]:
        stages: list[Stage] = [*_BEFORE_ANY]
        for mode in self._completed:
            stages.extend(_PROVED_BY.get(mode, ()))
        return [stage for stage in stages if stage not in self._proved]

    def _prove(self, stages: Iterable[Stage]) -> None:
        due = list(stages)
        if not due:
            return
        mine = {
            name: entry.calls
            for name, entry in installed().items()
            if entry.seam.reached_by in due
            and entry.seam.required
            and not isinstance(entry.seam, Reliance)
        }
        for rank, calls in enumerate(self.all_gather(mine)):
            never = [name for name in mine if not calls.get(name)]
            if never:
                raise self._refuse(
                    f"hook {never[0]}",
                    found=f"never called on rank {rank} by stage {due[-1]}: {', '.join(never)}",
                    why="SGLang reached the original through a reference that was made earlier",
                )
        self._proved.update(due)
        self.report("serving" if self.proofs_wanted <= self._proved else None)

    def _refuse(self, where: str, *, found: str, why: str) -> HookError:
        error = HookError(
            where,
            found=found,
            allowed="every required hook live and called on every rank",
            do=f"remove what bypasses it ({why}), or serve without this package (--mi300a off)",
        )
        self.report("refused", str(error))
        return error


_of_this_process: RankGates | None = None


def enter(gates: RankGates) -> None:
    """Make a rank's gates known to the hooks of its process."""
    global _of_this_process
    _of_this_process = gates


def of_this_process() -> RankGates:
    """Return this rank's gates."""
    assert _of_this_process is not None  # hooks of ranks are installed after `enter`
    return _of_this_process


def _mode_of(args: tuple[Any, ...], kwargs: dict[str, Any]) -> str:
    batch = kwargs.get("forward_batch", args[2] if len(args) > 2 else None)
    return str(getattr(getattr(batch, "forward_mode", None), "name", "?"))


def proofs_wanted(*, with_draft: bool) -> frozenset[Stage]:
    """Return the stages that a served model must pass before it is trusted."""
    last: tuple[Stage, ...] = ("verify", "draft") if with_draft else ("decode",)
    return frozenset((*_BEFORE_ANY, "prefill", *last))
