"""What a table is worth to a server: launches of a full batch and prefill buckets it settles."""

from __future__ import annotations

from sglang_mi300a.gemm import tuned_table
from sglang_mi300a.gemm.row_counts import prefill_buckets
from sglang_mi300a.gemm.shape_grid import Cell, ShapeGrid
from sglang_mi300a.tables import Table


def lines(table: Table, grid: ShapeGrid) -> list[str]:
    """Return what a table covers of a server's products; then what it lacks, a line a weight."""
    have, lack = tuned_table.covered(table, grid.cells())
    said = [f"covers {len(have)} of {grid.num_cells} products: {_worth(set(have), grid)}"]
    for product in grid.products:
        missing = [cell.m for cell in lack if (cell.n, cell.k) == (product.n, product.k)]
        if missing:
            shown = ", ".join(map(str, missing[:8])) + (", ..." if len(missing) > 8 else "")
            said.append(f"lacks {product.n} x {product.k} at M {shown}")
    return said


def _worth(have: set[Cell], grid: ShapeGrid) -> str:
    """Return the tuned launches of the target's pass at the largest batch, and tuned buckets."""
    batches = grid.batches
    batch = max(batches.decode_batch_sizes)
    rows = batch * max(1, batches.draft_tokens)
    in_pass = [product for product in grid.products if rows in product.m]
    launches = sum(product.num_in_target for product in in_pass)
    tuned = sum(
        product.num_in_target for product in in_pass if Cell(product.n, product.k, rows) in have
    )
    buckets = prefill_buckets(batches.chunk_tokens)
    whole = [
        bucket
        for bucket in buckets
        if all(Cell(product.n, product.k, bucket) in have for product in grid.products)
    ]
    return (
        f"tuned {tuned} of {launches} launches of batch {batch}, "
        f"{len(whole)} of {len(buckets)} prefill buckets"
    )
