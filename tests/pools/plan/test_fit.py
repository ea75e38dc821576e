"""What fits four APUs, what does not, and the smallest change that would."""

from dataclasses import replace

import pytest

from sglang_mi300a.errors import UserError
from sglang_mi300a.pools import fit, node_file, unified_memory
from sglang_mi300a.pools.byte_text import GB, GIB
from sglang_mi300a.pools.cgroup_memory import CgroupRoom
from sglang_mi300a.pools.fit import check_fit
from sglang_mi300a.pools.memory_holders import Held
from tests.pools.plan.models import plan

NODE = node_file.load("mi300a-x4").memory
DEFAULT_TTM = node_file.load("mi300a-x4-default-ttm").memory


def on_apu(node, index, **changes):
    """Return a node with one APU changed."""
    apus = [replace(a, **changes) if a.index == index else a for a in node.apus]
    return replace(node, apus=tuple(apus))


def under_cgroup(limit_bytes, used_bytes=0):
    room = CgroupRoom("/sys/fs/cgroup/memory.max", limit_bytes, used_bytes)
    limit = unified_memory.cgroup_limit(room, 4)
    return replace(NODE, apus=tuple(replace(a, limits=(*a.limits, limit)) for a in NODE.apus))


@pytest.mark.parametrize(
    ("sessions", "dtype"), [(48, "float32"), (96, "float32"), (48, "bfloat16"), (128, "bfloat16")]
)
def test_the_reference_node_holds_48_and_96_sessions_and_128_in_bfloat16(sessions, dtype):
    made = plan(sessions, state_dtype=dtype)
    assert check_fit(made, NODE) == []
    assert fit.fits(made, NODE)


def test_128_sessions_in_float32_are_missing_what_bfloat16_would_save():
    problems = check_fit(plan(128), NODE)
    assert [problem.apu for problem in problems] == [0, 1, 2, 3]
    assert all(0 < problem.missing_bytes < 12 * GB for problem in problems)
    assert "states in bfloat16 (check accuracy): --mamba-ssm-dtype bfloat16" in (
        problems[0].changes
    )


def test_192_sessions_are_told_what_they_need_and_how_many_fit():
    made = plan(192, state_dtype="bfloat16")
    problem = check_fit(made, NODE)[0]
    assert problem.needed_bytes == made.ranks[0].planned()
    assert problem.missing_bytes == made.ranks[0].planned() - 128_200_000_000
    most = fit.most_sessions(made, NODE)
    assert 128 <= most < 192
    assert any(f"--max-running-requests {most} " in change for change in problem.changes)


@pytest.mark.parametrize(
    "made", [plan(48), plan(96), plan(128, state_dtype="bfloat16")], ids=["48", "96", "128 bf16"]
)
def test_the_drivers_default_page_limit_is_refused_by_the_name_of_its_knob(made):
    problems = check_fit(made, DEFAULT_TTM)
    assert len(problems) == 4
    text = str(problems[0])
    assert "TTM page limit leaves 103.08 GB (96.00 GiB)" in text
    assert "/sys/module/amdttm/parameters/pages_limit = 100663296" in text
    assert "options amdttm pages_limit=134217728 page_pool_size=134217728" in problems[0].changes[0]


def test_a_device_limit_counts_what_the_driver_allocates_and_the_reserve():
    made = plan(48)
    rank = made.ranks[0]
    rooms = {room.limit.name: room for room in fit.rooms(rank, DEFAULT_TTM.apus[0])}
    assert rooms["TTM page limit"].needed_bytes == rank.planned() - 8 * GB
    assert rooms[fit.MEMORY].needed_bytes == rank.planned()


def test_a_gpu_with_memory_of_its_own_is_not_charged_for_the_host():
    made = plan(48)
    apu = replace(NODE.apus[0], shared=False, numa_node=-1, limits=())
    [room] = fit.rooms(made.ranks[0], apu)
    assert room.needed_bytes == made.ranks[0].planned() - 8 * GB


def test_every_change_that_is_proposed_does_fit():
    for made in (plan(128), plan(192), plan(192, state_dtype="bfloat16"), plan(96, 8192)):
        changes = list(fit.changes_that_fit(made, NODE))
        assert changes
        for change in changes:
            assert fit.fits(change.plan, NODE), change.text
            change.plan.asked.check()


def test_the_first_change_is_the_smallest():
    made = plan(48, kv_tokens=787_936, chunk_tokens=8192)
    short = on_apu(NODE, 2, free_bytes=made.ranks[0].planned() - GB)
    [problem] = check_fit(made, short)
    tokens = 787_936 - -(-GB // 16_384)
    assert problem.changes[0] == f"fewer KV tokens: --max-total-tokens {tokens // 16 * 16}"
    assert (problem.apu, problem.missing_bytes) == (2, GB)


def test_state_slots_above_the_schedulers_are_given_up_before_precision():
    made = plan(48, state_slots=400)
    short = on_apu(NODE, 0, free_bytes=made.ranks[0].planned() - 5 * GB)
    [problem] = check_fit(made, short)
    assert problem.changes[0].startswith("fewer state slots: --max-mamba-cache-size 29")


def test_no_pool_is_shrunk_below_what_its_sessions_need():
    for made in (plan(128), plan(128, state_slots=520)):
        for change in fit.changes_that_fit(made, NODE):
            asked = change.plan.asked
            assert asked.kv_tokens >= fit.KV_TOKENS_KEPT * asked.max_running_requests
            assert asked.state_slots >= 4 * asked.max_running_requests


def test_a_limit_is_not_said_to_be_the_cure_where_the_memory_is_missing_too():
    full = replace(DEFAULT_TTM, apus=tuple(replace(a, free_bytes=GB) for a in DEFAULT_TTM.apus))
    for problem in check_fit(plan(48), full):
        assert not any("pages_limit" in change for change in problem.changes)


def test_prefill_graphs_are_given_up_before_sessions():
    made = plan(96)
    short = on_apu(NODE, 1, free_bytes=made.ranks[0].planned() - 9 * GB)
    texts = [change.text for change in fit.changes_that_fit(made, short)]
    graphs = texts.index("no prefill graphs (slower prefill): --disable-prefill-cuda-graph")
    assert graphs < next(i for i, t in enumerate(texts) if t.startswith("fewer running requests"))


def test_one_full_node_is_named_with_what_holds_it():
    held = (
        Held("page cache", 30 * GIB, True),
        Held("process 77 python3", 20 * GIB, False, "kill 77"),
    )
    made = plan(48)
    full = on_apu(NODE, 3, free_bytes=40 * GB, reclaimable_bytes=30 * GIB, held=held)
    [problem] = check_fit(made, full)
    assert problem.apu == 3
    assert problem.missing_bytes == made.ranks[0].planned() - 40 * GB - 30 * GIB
    assert problem.held == (
        "page cache 32.21 GB (30.00 GiB) (given up on demand)",
        "process 77 python3 21.47 GB (20.00 GiB); kill 77",
    )


def test_reclaimable_memory_counts_as_free():
    assert check_fit(plan(48), on_apu(NODE, 1, free_bytes=8 * GB, reclaimable_bytes=120 * GB)) == []


def test_core_dumps_that_hold_enough_are_the_first_thing_to_remove():
    made = plan(96)
    dumps = Held("4 core dumps on tmpfs /tmp", 80 * GIB, False, "rm /tmp/gpucore.1 and the others")
    full = on_apu(NODE, 0, free_bytes=made.ranks[0].planned() - 20 * GB, held=(dumps,))
    [problem] = check_fit(made, full)
    assert problem.changes[0] == "rm /tmp/gpucore.1 and the others"


def test_a_control_group_smaller_than_the_weights_is_said_to_be():
    [problem, *_] = check_fit(plan(48), under_cgroup(200 * GB))
    assert problem.limit.name == "cgroup"
    assert "/sys/fs/cgroup/memory.max = 200000000000" in str(problem)
    assert "ask for a higher /sys/fs/cgroup/memory.max" in str(problem)
    hopeless = replace(problem.limit, raise_by="")
    node = replace(NODE, apus=tuple(replace(a, limits=(hopeless,)) for a in NODE.apus))
    assert "its weights alone take 59.81 GB" in str(check_fit(plan(48), node)[0])


def test_a_control_group_of_all_the_memory_is_no_problem():
    assert check_fit(plan(48), under_cgroup(4 * 128_200_000_000)) == []


def test_presets_that_fit_are_named():
    problems = check_fit(plan(192), NODE, {"small": plan(48), "big": plan(160)})
    assert problems[0].presets == ("small",)
    assert "presets that fit: small" in str(problems[0])


def test_a_node_of_fewer_apus_than_ranks_is_bad_input():
    half = replace(NODE, apus=NODE.apus[:2])
    with pytest.raises(UserError, match="found 2 accelerators.*--tp-size 2"):
        check_fit(plan(48), half)


def test_a_plan_that_fits_but_not_at_the_upper_end_of_its_ranges_warns_once_for_equal_apus():
    [warning] = fit.warnings(plan(96), NODE)
    assert warning.startswith("APU 0, 1, 2, 3: fits as planned with")
    made = plan(48)
    roomy = replace(NODE, apus=tuple(replace(a, free_bytes=300 * GB, limits=()) for a in NODE.apus))
    assert fit.warnings(made, roomy) == []


def test_a_low_page_limit_is_pointed_out_where_the_plan_fits_under_it():
    [low] = [text for text in fit.warnings(plan(8), DEFAULT_TTM) if "TTM" in text]
    assert "keeps 25.12 GB (23.40 GiB) from the server; put `options amdttm" in low
    assert not any("TTM" in text for text in fit.warnings(plan(8), NODE))


def test_what_binds_is_said():
    assert fit.binds(plan(48)).startswith("48 sessions: --max-running-requests and state slots")
    few = plan(48, kv_tokens=10 * 4096)
    assert fit.binds(few).startswith("10 sessions: KV tokens (40,960 at 4,096 a session)")
    assert fit.memory_binds(plan(48), NODE).startswith("APU 0: the APU's memory (")
    assert fit.memory_binds(plan(48), DEFAULT_TTM).startswith("APU 0: TTM page limit (")


def test_fewer_sessions_keep_their_share_of_every_pool():
    from tests.pools.plan.models import asked

    smaller = fit.with_sessions(asked(96, state_slots=480), 48)
    assert (smaller.max_running_requests, smaller.state_slots) == (48, 240)
    assert smaller.kv_tokens == 48 * 4096
    fit.with_sessions(asked(7, context=1000, kv_tokens=7008), 3).check()
