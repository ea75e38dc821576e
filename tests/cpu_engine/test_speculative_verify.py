"""The drafted tree, its verification and its commit, against walks over explicit trees."""

from __future__ import annotations

import itertools
from types import SimpleNamespace

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from sglang_mi300a.cpu_engine.operators import convolution, speculative_verify
from sglang_mi300a.cpu_engine.operators.speculative_verify import BLOCK_MASK, FULL_MASK


@st.composite
def drafts(draw: st.DrawFn) -> tuple[list[list[int]], int, int]:
    """Return a batch of trees (parent of each token), topk and steps.

    A drafter keeps the best ``topk`` candidates of each level and proposes ``topk`` behind each.
    """
    topk, steps = draw(st.integers(1, 3)), draw(st.integers(1, 4))
    n = draw(st.integers(1, 1 + topk * steps))
    trees = []
    for _ in range(draw(st.integers(1, 3))):
        parents, depths = [-1], [0]
        for token in range(1, n):
            open_parents = [
                p for p in range(token) if depths[p] < steps and parents.count(p) < topk
            ]
            parents.append(draw(st.sampled_from(open_parents)))
            depths.append(depths[parents[-1]] + 1)
        trees.append(parents)
    return trees, topk, steps


def _as_candidates(parents: list[int], topk: int) -> tuple[list[int], list[int]]:
    """Return ``parent_list`` and ``selected_index`` in the drafter's numbering.

    Entry e of ``parent_list`` stands for a kept candidate; its ``topk`` proposals are candidates
    ``topk * e`` to ``topk * e + topk - 1``; entry 0 is token 0.
    """
    entry_of, parent_list, selected = {0: 0}, [-1], []
    children: dict[int, int] = {}
    for token, parent in enumerate(parents):
        if token == 0:
            continue
        place = children.get(parent, 0)
        children[parent] = place + 1
        candidate = topk * entry_of[parent] + place
        selected.append(candidate)
        entry_of[token] = len(parent_list)
        parent_list.append(candidate)
    return parent_list, selected


def _build(
    trees: list[list[int]], topk: int, steps: int, committed: list[int], mode: int
) -> SimpleNamespace:
    batch, n = len(trees), len(trees[0])
    pairs = [_as_candidates(parents, topk) for parents in trees]
    cells = sum(n * ((length if mode == FULL_MASK else 0) + n) for length in committed)
    got = SimpleNamespace(
        mask=torch.ones(cells, dtype=torch.bool),
        positions=torch.zeros(batch * n, dtype=torch.long),
        index=torch.full((batch, n), -1),
        next_token=torch.full((batch, n), -1),
        next_sibling=torch.full((batch, n), -1),
    )
    speculative_verify.build_tree_kernel_efficient_cpu(
        torch.tensor([pair[0] for pair in pairs]),
        torch.tensor([pair[1] for pair in pairs]).reshape(batch, n - 1).long(),
        torch.tensor(committed),
        got.mask,
        got.positions,
        got.index,
        got.next_token,
        got.next_sibling,
        topk,
        steps,
        n,
        mode,
    )
    return got


def _lineage(token: int, parents: list[int]) -> list[int]:
    path = [token]
    while parents[path[-1]] != -1:
        path.append(parents[path[-1]])
    return path


@given(drafts(), st.sampled_from([FULL_MASK, BLOCK_MASK]))
def test_a_token_sees_its_ancestors_and_stands_at_its_depth(
    drafted: tuple[list[list[int]], int, int], mode: int
) -> None:
    trees, topk, steps = drafted
    n, committed = len(trees[0]), [3 * i + 2 for i in range(len(trees))]
    got = _build(trees, topk, steps, committed, mode)
    at = 0
    for i, parents in enumerate(trees):
        prefix = committed[i] if mode == FULL_MASK else 0
        for token in range(n):
            path = _lineage(token, parents)
            row = got.mask[at : at + prefix + n].tolist()
            assert row == [True] * prefix + [other in path for other in range(n)]
            assert int(got.positions[i * n + token]) == committed[i] + len(path) - 1
            at += prefix + n
    assert at == len(got.mask)
    assert got.index.flatten().tolist() == list(range(len(trees) * n))


@given(drafts())
def test_links_lead_to_every_child_in_ascending_order(
    drafted: tuple[list[list[int]], int, int],
) -> None:
    trees, topk, steps = drafted
    got = _build(trees, topk, steps, [4] * len(trees), BLOCK_MASK)
    for i, parents in enumerate(trees):
        for token in range(len(parents)):
            child, children = int(got.next_token[i, token]), []
            while child != -1:
                children.append(child)
                child = int(got.next_sibling[i, child])
            assert children == [c for c, parent in enumerate(parents) if parent == token]
        assert convolution.tree_parents(
            got.next_token[i].tolist(), got.next_sibling[i].tolist()
        ) == list(parents)


def test_a_draft_whose_parent_was_not_kept_hangs_nowhere_and_sees_token_0_and_itself() -> None:
    got = SimpleNamespace(mask=torch.ones(9, dtype=torch.bool), positions=torch.zeros(3).long())
    links = [torch.full((1, 3), -1) for _ in range(3)]
    # Candidate 4 was proposed by entry 2, which stands for candidate 1; kept are 0 and 4.
    speculative_verify.build_tree_kernel_efficient_cpu(
        torch.tensor([[-1, 0, 1]]),
        torch.tensor([[0, 4]]),
        torch.tensor([5]),
        got.mask,
        got.positions,
        *links,
        2,
        2,
        3,
        BLOCK_MASK,
    )
    assert got.mask.view(3, 3).tolist() == [[1, 0, 0], [1, 1, 0], [1, 0, 1]]
    assert got.positions.tolist() == [5, 6, 6]
    assert links[1].tolist() == [[1, -1, -1]]
    assert links[2].tolist() == [[-1, -1, -1]]


def test_packed_masks_are_refused_by_name() -> None:
    with pytest.raises(NotImplementedError, match="build_tree_kernel_efficient_cpu"):
        _build([[-1]], 1, 1, [1], 2)


def _longest_agreeing_path(parents: list[int], ids: list[int], choices: list[int]) -> list[int]:
    """Return the accepted tokens by trying every path from token 0."""
    n = len(parents)
    best = [0]
    for length in range(1, n):
        for path in itertools.permutations(range(1, n), length):
            steps = list(zip((0, *path), path, strict=False))
            if all(parents[b] == a and ids[b] == choices[a] for a, b in steps):
                best = [0, *path]
    return best


@given(drafts(), st.data())
def test_verification_accepts_the_longest_path_that_agrees_with_the_target(
    drafted: tuple[list[list[int]], int, int], data: st.DataObject
) -> None:
    trees, topk, steps = drafted
    trees = [parents[:6] for parents in trees]  # every path of more tokens is too many to try
    batch, n = len(trees), len(trees[0])
    links = _build(trees, topk, steps, [1] * batch, BLOCK_MASK)
    # Siblings carry different tokens, as a drafter's best candidates do.
    ids = []
    for parents in trees:
        row = [data.draw(st.integers(0, 3))]
        for token in range(1, n):
            taken = {row[s] for s in range(1, token) if parents[s] == parents[token]}
            row.append(data.draw(st.sampled_from([t for t in range(4) if t not in taken])))
        ids.append(row)
    choices = [[data.draw(st.integers(0, 3)) for _ in range(n)] for _ in range(batch)]
    predicts = torch.full((batch * n,), -9, dtype=torch.int32)
    accept_index = torch.full((batch, steps + 1), -1, dtype=torch.int32)
    accepted = torch.zeros(batch, dtype=torch.int32)
    speculative_verify.verify_tree_greedy_cpu(
        predicts=predicts,
        accept_index=accept_index,
        accept_token_num=accepted,
        candidates=torch.tensor(ids),
        retrive_index=links.index,
        retrive_next_token=links.next_token,
        retrive_next_sibling=links.next_sibling,
        target_predict=torch.tensor(choices),
    )
    for i in range(batch):
        path = _longest_agreeing_path(trees[i], ids[i], choices[i])
        rows = [i * n + token for token in path]
        assert accept_index[i].tolist() == rows + [-1] * (steps + 1 - len(rows))
        assert int(accepted[i]) == len(path) - 1
        for token in range(n):
            wanted = choices[i][token] if token in path else -9
            assert int(predicts[i * n + token]) == wanted


def _caches(conv_dtype: torch.dtype = torch.float32) -> SimpleNamespace:
    layers, lines, requests, steps = 2, 5, 3, 4
    numbers = torch.arange(layers * requests * steps * 6, dtype=torch.float32)
    return SimpleNamespace(
        temporal=torch.zeros(layers, lines, 1, 2, 3),
        intermediate_ssm=numbers.view(layers, requests, steps, 1, 2, 3) + 1,
        conv=[torch.zeros(layers, lines, 2, 3, dtype=conv_dtype)],
        intermediate_conv_window=[numbers.view(layers, requests, steps, 2, 3).to(conv_dtype) + 1],
    )


def test_states_behind_the_last_accepted_tokens_are_committed() -> None:
    caches = _caches()
    lines, steps = [4, 0, -1], [2, -1, 1]
    speculative_verify.commit_accepted_states(
        caches, torch.tensor(lines, dtype=torch.int32), torch.tensor(steps), None, None
    )
    for state, by_step in (
        (caches.temporal, caches.intermediate_ssm),
        (caches.conv[0], caches.intermediate_conv_window[0]),
    ):
        assert torch.equal(state[:, 4], by_step[:, 0, 2])
        assert not state[:, :4].any()  # a step or a line below zero commits nothing


def test_tracked_lines_are_committed_too() -> None:
    caches = _caches()
    speculative_verify.commit_accepted_states(
        caches,
        torch.tensor([0, 1, 2]),
        torch.tensor([0, 1, 2]),
        torch.tensor([3, 3, 4]),
        torch.tensor([-1, -1, 3]),
    )
    for line, request, step in ((0, 0, 0), (1, 1, 1), (2, 2, 2), (4, 2, 3)):
        assert torch.equal(caches.temporal[:, line], caches.intermediate_ssm[:, request, step])
    assert not caches.temporal[:, 3].any()


def test_a_model_without_recurrent_state_commits_its_convolutions() -> None:
    caches = _caches()
    caches.temporal, caches.intermediate_ssm = torch.zeros(0), None
    speculative_verify.commit_accepted_states(
        caches, torch.tensor([1]), torch.tensor([0]), None, None
    )
    assert torch.equal(caches.conv[0][:, 1], caches.intermediate_conv_window[0][:, 0, 0])
