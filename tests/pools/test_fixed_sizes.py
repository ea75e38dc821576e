"""Sizes that came out are compared with the sizes that were planned."""

from types import SimpleNamespace

import pytest

from sglang_mi300a.errors import UserError
from sglang_mi300a.pools.fixed_sizes import check_sizes
from sglang_mi300a.settings import Resolved

PLANNED = Resolved(
    preset="tuned", device="cpu", model_path="/m", tp_size=1, ep_size=1, num_local_ranks=1,
    with_draft=False, kv_tokens=4096, state_slots=32, max_running_requests=8, run_dir="/run",
)  # fmt: skip


def result(tokens=4096, requests=8, slots=32):
    pool = SimpleNamespace(mamba_pool=SimpleNamespace(size=slots))
    return SimpleNamespace(
        max_total_num_tokens=tokens, max_running_requests=requests, req_to_token_pool=pool
    )


def test_exactly_the_planned_sizes_pass():
    assert check_sizes(result(), SimpleNamespace(is_draft_worker=False), PLANNED) is None


@pytest.mark.parametrize(
    ("sizes", "found"),
    [
        ({"tokens": 4080}, "target pools: found KV tokens 4080; supported: KV tokens 4096"),
        ({"requests": 6}, "running requests 6"),
        ({"slots": 31}, "state slots 31"),
    ],
)
def test_a_difference_is_named_with_both_numbers(sizes, found):
    with pytest.raises(UserError, match=found):
        check_sizes(result(**sizes), SimpleNamespace(is_draft_worker=False), PLANNED)


def test_the_draft_has_kv_but_no_state_slots_of_its_own():
    draft = SimpleNamespace(is_draft_worker=True)
    assert check_sizes(result(slots=0), draft, PLANNED) is None
    with pytest.raises(UserError, match="draft pools: found KV tokens 1"):
        check_sizes(result(tokens=1), draft, PLANNED)
