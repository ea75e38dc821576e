"""SGLang waits longer where AITER still has to compile, and by no more than that may take."""

import importlib.util
import re
from pathlib import Path

import pytest

from sglang_mi300a.kernel_cache import needed, time_limits

ALL = needed.names()


def test_with_every_kernel_there_nothing_is_raised(tmp_path):
    assert time_limits.to_compile(tmp_path, [], made_before=True) == []
    assert time_limits.seconds(0) == 0


def test_on_a_first_start_only_kernels_from_templates_are_still_to_come(tmp_path):
    lacking = time_limits.to_compile(tmp_path, [], made_before=False)
    assert lacking == [time_limits.FROM_TEMPLATES]
    assert time_limits.seconds(len(lacking)) == time_limits.SLOWEST_S


def test_each_missing_module_adds_time(tmp_path):
    times = [
        time_limits.seconds(len(time_limits.to_compile(tmp_path, ALL[:count], made_before=True)))
        for count in range(len(ALL) + 1)
    ]
    assert times == sorted(set(times))
    assert times[1:3] == [363, 463]


def test_a_module_that_came_with_aiter_is_not_compiled_and_a_variant_never_comes_with_it(tmp_path):
    for row in needed.rows():
        (tmp_path / f"{row.modules[0]}.so").touch()
    lacking = time_limits.to_compile(tmp_path, ALL, made_before=True)
    assert lacking == [row.name for row in needed.rows() if row.recipe]
    assert lacking


def test_a_folder_without_a_key_is_judged_by_names(tmp_path):
    assert time_limits.missing_in(tmp_path) == list(ALL)
    (tmp_path / "mha_batch_prefill_bf16_nlogits_nbias_nmask.so").touch()
    (tmp_path / "module_rmsnorm.so").touch()
    missing = time_limits.missing_in(tmp_path)
    assert set(ALL) - set(missing) == {"rmsnorm", "batch-prefill-mask", "batch-prefill-nmask"}


def test_kernels_from_templates_are_seen_where_aiter_links_them(tmp_path):
    assert not time_limits.has_made_from_templates(tmp_path)
    (tmp_path / "build/pa_ragged").mkdir(parents=True)
    assert not time_limits.has_made_from_templates(tmp_path)
    (tmp_path / "build/pa_ragged/lib.so").touch()
    assert time_limits.has_made_from_templates(tmp_path)


def test_stocks_health_check_waits_as_long_as_is_said_here():
    spec = importlib.util.find_spec("sglang")
    if spec is None:
        pytest.skip("needs SGLang")
    path = Path(spec.submodule_search_locations[0]) / "srt/entrypoints/http_server.py"
    found = re.search(rf'os\.getenv\("{time_limits.HEALTH}", (\d+)\)', path.read_text())
    assert int(found[1]) == time_limits.STOCK_HEALTH_S
