"""How an expert layer is launched for a batch: tile and grid, from tables.

A table that was measured on this machine (``sglang-mi300a tune moe``) comes first, then the shipped
one, whose rows are the cost model's. A table made for another device or other software is refused
whole, and the report says so. What is chosen changes the time, never a bit of the result.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

from sglang_mi300a import boot_report, code_objects, device, settings, shipped, tables
from sglang_mi300a.errors import UserError
from sglang_mi300a.moe.kernels import candidates, prediction
from sglang_mi300a.tables import Table


@dataclass(frozen=True)
class Choice:
    """How a layer is launched.

    Attributes:
        tile: Tokens of an expert that a workgroup takes at once, 16 or 32.
        gate_up_groups: Workgroups a compute unit in the first stage, and
        down_groups: in the second.
        basis: What the row is from: ``model`` or ``measured``.
    """

    tile: int
    gate_up_groups: int
    down_groups: int
    basis: str


@dataclass(frozen=True)
class Chooser:
    """Tables in the order in which they are asked.

    Attributes:
        tables: Those that fit.
        refused: Why others do not, a line each.
    """

    tables: tuple[Table, ...]
    refused: tuple[str, ...] = ()

    def choose(
        self, num_tokens: int, *, top_k: int, experts: int, inner: int, weights: str
    ) -> Choice:
        """Return how to launch a layer.

        Sizes that no table has are served as the listed ones whose experts get as many rows.

        Args:
            num_tokens: Rows of the activations, 1 or more.
            top_k: Experts of a token.
            experts: Local experts.
            inner: Neurons of an expert on the rank.
            weights: ``subnormals``, ``bf8`` or ``bf16``.
        """
        for table in self.tables:
            if rows := _rows(table, experts, inner, weights):
                return _at(rows, num_tokens)
        as_many = num_tokens * top_k / experts * prediction.EXPERTS / prediction.TOP_K
        shipped_table = self.tables[-1]
        listed = {(int(str(key[0])), int(str(key[1]))) for key in shipped_table.rows}
        nearest = min(listed, key=lambda size: (abs(size[1] - inner), abs(size[0] - experts)))
        return _at(_rows(shipped_table, *nearest, weights), as_many)


Row = tuple[int, Choice]


def _rows(table: Table, experts: int, inner: int, weights: str) -> Sequence[Row]:
    return [
        (
            int(str(row["m"])),
            Choice(
                int(str(row["tile"])),
                int(str(row["gate_up_groups"])),
                int(str(row["down_groups"])),
                str(row["basis"]),
            ),
        )
        for key, row in table.rows.items()
        if key[:3] == (experts, inner, weights)
    ]


def _at(rows: Sequence[Row], num_tokens: float) -> Choice:
    """The row of the next larger number of tokens, or the last."""
    return next((choice for tokens, choice in rows if tokens >= num_tokens), rows[-1][1])


def shipped_path() -> Path:
    """Return the file of the table that is shipped."""
    return shipped.tuning_tables() / "moe" / candidates.FILE


def measured_path() -> Path:
    """Return the file that ``tune moe`` writes on this machine."""
    return settings.state_dir() / "tables" / "moe" / candidates.FILE


def software() -> dict[str, str]:
    """Return the software whose change makes a measured table stale: the code object, by digest."""
    return {"code_object": code_objects.load("moe").digest[:16]}


def chooser(measured: Path, found: Iterable[device.Accelerator]) -> Chooser:
    """Return the tables that fit a machine.

    Args:
        measured: File of the table that was measured here; it may be missing.
        found: The machine's accelerators; where there are none, in tests and on a laptop, the
            shipped table is used as it is.
    """
    modelled = tables.load(shipped_path())
    on = next((one for one in found if one.arch == code_objects.ARCH), None)
    used, refused = [], []
    if on is not None and measured.is_file():
        try:
            table = tables.load(measured)
        except UserError as error:
            refused.append(str(error))
        else:
            misfits = table.misfits(on, software())
            if table.op != candidates.OP or table.key != candidates.KEY:
                misfits.append(f"op {table.op}, key {list(table.key)}")
            refused += [f"{measured}: {why}" for why in misfits]
            used += [] if misfits else [table]
    if on is not None:
        # Still the best there is: a tile is right on every gfx942, and the grid follows the device.
        refused += [
            f"{shipped_path()}: {why}; used all the same" for why in modelled.misfits(on, {})
        ]
    return Chooser((*used, modelled), tuple(refused))


@lru_cache(maxsize=1)
def in_use() -> Chooser:
    """Return this process's tables; the boot report names them."""
    made = chooser(measured_path(), device.accelerators())
    boot_report.add_fact(
        "expert_tables",
        {"made_by": [table.made["by"] for table in made.tables], "refused": list(made.refused)},
    )
    return made


@lru_cache(maxsize=4096)
def choose(num_tokens: int, *, top_k: int, experts: int, inner: int, weights: str) -> Choice:
    """Return how this process launches a layer; see :meth:`Chooser.choose`."""
    return in_use().choose(num_tokens, top_k=top_k, experts=experts, inner=inner, weights=weights)
