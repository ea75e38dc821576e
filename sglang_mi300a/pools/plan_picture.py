"""A plan as a picture: one bar an APU, stacked from its lines, beside what the APU has."""

from __future__ import annotations

import importlib
from pathlib import Path
from typing import Any

from sglang_mi300a.errors import UserError
from sglang_mi300a.pools import fit
from sglang_mi300a.pools.byte_text import GB, GIB
from sglang_mi300a.pools.memory_plan import Plan
from sglang_mi300a.pools.unified_memory import NodeMemory

SUFFIXES = (".png", ".svg")
_COLOURS = {
    "weights": "#274653", "draft": "#3d6b7d", "KV pool": "#2a9d8f", "draft KV": "#7bc8bd",
    "state slots": "#e9c46a", "verify scratch": "#f2dba0", "request tables": "#f7ead0",
    "graph pools": "#f4a261", "activations": "#e76f51", "host processes": "#8d6a9f",
    "reserve": "#bbbbbb",
}  # fmt: skip
_OTHER = "#5c5c5c"


def check(path: Path) -> None:
    """Check that a picture can be drawn and written there.

    Raises:
        UserError: Another ending, no such folder, or matplotlib is missing.
    """
    if path.suffix not in SUFFIXES:
        raise UserError(
            f"--plot {path}",
            found=f"ending {path.suffix!r}",
            allowed=" or ".join(SUFFIXES),
            do=f"name it {path.stem}.png",
        )
    if not path.absolute().parent.is_dir():
        raise UserError(
            f"--plot {path}",
            found=f"no folder {path.parent}",
            allowed="a file in a folder that exists",
            do="make the folder first",
        )
    _figures()


def draw(plan: Plan, live: NodeMemory, path: Path) -> None:
    """Write the picture.

    Args:
        plan: The plan.
        live: The node.
        path: PNG or SVG.

    Raises:
        UserError: As :func:`check`, or the file cannot be written.
    """
    check(path)
    figure = _figures().Figure(figsize=(9, 6), dpi=120)
    axes = figure.subplots()
    pairs = fit.placed(plan, live)
    names = [line.name for line in plan.ranks[0].lines]
    places = list(range(len(pairs)))
    bottoms = [0.0] * len(pairs)
    for name in names:
        lines = [rank.line(name) for rank, _ in pairs]
        heights = [line.planned / GB for line in lines]
        if not any(heights):
            continue
        axes.bar(
            places, heights, 0.6, bottoms, color=_COLOURS.get(name, _OTHER), edgecolor="white",
            linewidth=0.5, label=f"{name} {max(heights):.2f} GB ({lines[0].amount.kind})",
            hatch=None if lines[0].amount.kind == "exact" else "//",
        )  # fmt: skip
        bottoms = [bottom + height for bottom, height in zip(bottoms, heights, strict=True)]
    for place, (rank, apu) in zip(places, pairs, strict=True):
        available = apu.node_bytes / GB
        axes.plot([place - 0.4, place + 0.4], [available, available], color="black")
        left = fit.tightest(rank, apu).left_bytes / GB
        axes.annotate(
            f"{left:+.2f} GB",
            (place, max(available, bottoms[place])),
            ha="center",
            va="bottom",
            color="black" if left >= 0 else "#c1121f",
        )
    axes.set_xticks(places, [f"APU {apu.index}" for _, apu in pairs])
    axes.set_ylabel("GB (10$^9$ bytes)")
    right = axes.secondary_yaxis(
        "right", functions=(lambda gb: gb * GB / GIB, lambda gib: gib * GIB / GB)
    )
    right.set_ylabel("GiB (2$^{30}$ bytes)")
    asked = plan.asked
    axes.set_title(
        f"{asked.max_running_requests} running requests, {asked.kv_tokens:,} KV tokens, "
        f"{asked.state_slots:,} states in {asked.state_dtype}, on {live.name}\n"
        "black line: free or reclaimable; number: what the tightest bound leaves",
        fontsize=9,
    )
    handles, labels = axes.get_legend_handles_labels()
    axes.legend(handles[::-1], labels[::-1], loc="center left", bbox_to_anchor=(1.12, 0.5))
    try:
        # Without a date, the same plan is the same file.
        metadata = {"Date": None} if path.suffix == ".svg" else None
        figure.savefig(path, bbox_inches="tight", metadata=metadata)
    except OSError as error:
        raise UserError(
            f"--plot {path}",
            found=f"not writable ({error.strerror})",
            allowed="a file that can be written",
            do="name another",
        ) from error


def _figures() -> Any:
    try:
        return importlib.import_module("matplotlib.figure")
    except ImportError as error:
        raise UserError(
            "--plot",
            found=f"matplotlib cannot be imported ({error})",
            allowed="an installation with pictures",
            do="pip install 'sglang-mi300a[plots]'",
        ) from error
