"""SGLang waits longer where AITER still has to compile, and by no more than that may take."""

import importlib.util
import re
from pathlib import Path

import pytest

from sglang_mi300a.kernel_cache import needed, time_limits

ALL = needed.names()
VARIANTS = {
    "batch-prefill-mask": "mha_batch_prefill_bf16_nlogits_nbias_mask_nlse_ndropout.so",
    "batch-prefill-nmask": "mha_batch_prefill_bf16_nlogits_nbias_nmask_nlse_ndropout.so",
}


def put(folder, *names):
    """Put needed modules there as AITER calls them."""
    for row in needed.rows():
        if row.name in names:
            (folder / VARIANTS.get(row.name, f"{row.modules[-1]}.so")).touch()


def put_template(folder):
    (folder / "build/pa_ragged").mkdir(parents=True)
    (folder / "build/pa_ragged/lib.so").touch()


def test_with_every_kernel_there_nothing_is_raised(tmp_path):
    put(tmp_path, *ALL)
    put_template(tmp_path)
    assert time_limits.to_compile(tmp_path) == []
    assert time_limits.seconds(0) == 0


def test_on_a_first_start_only_kernels_from_templates_are_still_to_come(tmp_path):
    put(tmp_path, *ALL)
    lacking = time_limits.to_compile(tmp_path)
    assert lacking == [time_limits.FROM_TEMPLATES]
    assert time_limits.seconds(len(lacking)) == time_limits.SLOWEST_S


@pytest.mark.parametrize("name", ALL)
def test_each_missing_module_is_named_and_no_other_stands_in_for_it(tmp_path, name):
    put(tmp_path, *(set(ALL) - {name}))
    put_template(tmp_path)
    assert time_limits.to_compile(tmp_path) == [name]


def test_each_missing_module_adds_time():
    times = [time_limits.seconds(count) for count in range(len(ALL) + 1)]
    assert times == sorted(set(times))
    assert times[1:3] == [363, 463]


def test_a_folder_with_nothing_lacks_all(tmp_path):
    lacking = [*ALL, time_limits.FROM_TEMPLATES]
    assert time_limits.to_compile(tmp_path) == lacking
    assert time_limits.to_compile(tmp_path / "none") == lacking


def test_stocks_health_check_waits_as_long_as_is_said_here():
    spec = importlib.util.find_spec("sglang")
    if spec is None:
        pytest.skip("needs SGLang")
    path = Path(spec.submodule_search_locations[0]) / "srt/entrypoints/http_server.py"
    found = re.search(rf'os\.getenv\("{time_limits.HEALTH}", (\d+)\)', path.read_text())
    assert int(found[1]) == time_limits.STOCK_HEALTH_S
