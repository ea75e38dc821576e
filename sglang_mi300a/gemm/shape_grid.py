"""The grid of a server: each dense product's shape with each M that it is dispatched with."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from sglang_mi300a import shipped as shipped_data
from sglang_mi300a.gemm.linear_shapes import LinearShape
from sglang_mi300a.gemm.row_counts import Batches, row_counts

SHAPES_FILE = "gemm/shapes.jsonl"


class Cell(NamedTuple):
    """One product to tune: output features, input features, rows."""

    n: int
    k: int
    m: int


@dataclass(frozen=True)
class Product:
    """All uses of one weight shape.

    Attributes:
        n: Output features on a rank.
        k: Input features on a rank.
        names: Parameters of this shape.
        num_in_target: Launches in one pass of the target.
        num_in_draft: Launches in one pass of the draft.
        m: Rows it is dispatched with, ascending.
    """

    n: int
    k: int
    names: tuple[str, ...]
    num_in_target: int
    num_in_draft: int
    m: tuple[int, ...]


@dataclass(frozen=True)
class ShapeGrid:
    """What a table must hold to serve one preset.

    Attributes:
        tp: Tensor-parallel ranks.
        batches: The batches it follows from.
        products: By descending weight size.
        untuned: Products that are never tuned (a visual tower's).
    """

    tp: int
    batches: Batches
    products: tuple[Product, ...]
    untuned: tuple[LinearShape, ...] = ()

    def cells(self) -> Iterator[Cell]:
        """Yield every cell, sorted as tables are."""
        for product in sorted(self.products, key=lambda product: (product.n, product.k)):
            for m in product.m:
                yield Cell(product.n, product.k, m)

    @property
    def num_cells(self) -> int:
        """Cells in all."""
        return sum(len(product.m) for product in self.products)


def grid_of(
    shapes: Sequence[LinearShape],
    batches: Batches,
    tp: int,
    untuned: Sequence[LinearShape] = (),
) -> ShapeGrid:
    """Return the grid of some products and batches; equal shapes become one product."""
    by_shape: dict[tuple[int, int], list[LinearShape]] = {}
    for shape in shapes:
        by_shape.setdefault((shape.n, shape.k), []).append(shape)
    products = [
        Product(
            n=n,
            k=k,
            names=tuple(shape.name for shape in alike),
            num_in_target=sum(shape.num_in_target for shape in alike),
            num_in_draft=sum(shape.num_in_draft for shape in alike),
            m=tuple(sorted({m for shape in alike for m in row_counts(shape, batches)})),
        )
        for (n, k), alike in by_shape.items()
    ]
    products.sort(key=lambda product: (-product.n * product.k, product.n))
    return ShapeGrid(tp=tp, batches=batches, products=tuple(products), untuned=tuple(untuned))


def as_json(grid: ShapeGrid) -> dict[str, Any]:
    """Return the grid as plain data."""
    batches = grid.batches
    return {
        "tp": grid.tp,
        "decode_batch_sizes": list(batches.decode_batch_sizes),
        "draft_tokens": batches.draft_tokens,
        "captured_prefill_tokens": list(batches.captured_prefill_tokens),
        "chunk_tokens": batches.chunk_tokens,
        "num_cells": grid.num_cells,
        "products": [
            {
                "n": product.n,
                "k": product.k,
                "names": list(product.names),
                "num_in_target": product.num_in_target,
                "num_in_draft": product.num_in_draft,
                "m": list(product.m),
            }
            for product in grid.products
        ],
        "untuned": [{"name": one.name, "n": one.n, "k": one.k} for one in grid.untuned],
    }


def rendered(model: str, grids: Mapping[str, ShapeGrid]) -> str:
    """Return the committed lines of a model's grids by preset: JSON, one product a line."""
    lines = []
    for preset, grid in grids.items():
        about = {"model": model, "preset": preset, "tp": grid.tp}
        lines += [json.dumps({**about, **product}) for product in as_json(grid)["products"]]
    return "\n".join(lines) + "\n"


def shipped(preset: str) -> list[dict[str, Any]]:
    """Return the committed lines of a preset for the real model; see :func:`rendered`."""
    lines = (shipped_data.tuning_tables() / SHAPES_FILE).read_text(encoding="utf-8").splitlines()
    return [row for row in map(json.loads, lines) if row["preset"] == preset]


def as_text(grid: ShapeGrid, title: str) -> str:
    """Return a table for people: a line a product, M values folded into ranges."""
    lines = [
        title,
        f"  {len(grid.products)} shapes, {grid.num_cells} cells on each of {grid.tp} ranks",
        f"  {'N x K':>13}  {'target':>6}  {'draft':>5}  {'cells':>5}  M",
    ]
    for product in grid.products:
        lines.append(
            f"  {f'{product.n} x {product.k}':>13}  {product.num_in_target:>6}  "
            f"{product.num_in_draft:>5}  {len(product.m):>5}  {folded(product.m)}"
        )
        lines.append(f"  {'':>13}  {'':>6}  {'':>5}  {'':>5}  {', '.join(product.names)}")
    for one in grid.untuned:
        lines.append(f"  {f'{one.n} x {one.k}':>13}  not tuned (image patches): {one.name}")
    return "\n".join(lines)


def folded(values: Sequence[int]) -> str:
    """Return ascending numbers with even steps folded: ``1-8, 10-32 by 2``."""
    parts: list[str] = []
    at = 0
    while at < len(values):
        end = at + 1
        step = values[end] - values[at] if end < len(values) else 0
        while end + 1 < len(values) and values[end + 1] - values[end] == step:
            end += 1
        if end - at >= 2 and end < len(values):
            by = "" if step == 1 else f" by {step}"
            parts.append(f"{values[at]}-{values[end]}{by}")
            at = end + 1
        else:
            parts.append(str(values[at]))
            at += 1
    return ", ".join(parts)
