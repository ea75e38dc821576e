"""States are copied to where the prefix cache's snapshots are taken, and nothing else is."""

from __future__ import annotations

import torch

from sglang_mi300a.cpu_engine.operators.snapshots import copy_tracked_states


def _pools() -> tuple[torch.Tensor, torch.Tensor]:
    numbers = torch.arange(2 * 6 * 3, dtype=torch.float32)
    return numbers.view(2, 6, 3).clone(), numbers.view(2, 6, 3, 1) * 10


def test_only_tracked_requests_are_copied_in_every_layer() -> None:
    conv, recurrent = _pools()
    before = conv.clone(), recurrent.clone()
    copy_tracked_states(
        conv,
        recurrent,
        torch.tensor([1, 2, 0]),
        torch.tensor([True, False, True]),
        torch.tensor([4, 5, 3]),
        batch_size=2,  # the third row is padding
    )
    for now, then in zip((conv, recurrent), before, strict=True):
        assert torch.equal(now[:, 4], then[:, 1])
        rest = [0, 1, 2, 3, 5]
        assert torch.equal(now[:, rest], then[:, rest])


def test_freed_lines_are_neither_read_nor_written_where_they_are_checked() -> None:
    conv, recurrent = _pools()
    before = conv.clone()
    copy_tracked_states(
        conv,
        recurrent,
        torch.tensor([-1, 1]),
        torch.tensor([True, True]),
        torch.tensor([4, -1]),
        batch_size=2,
        check_freed_slots=True,
    )
    assert torch.equal(conv, before)
