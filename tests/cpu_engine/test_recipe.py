"""The recipe: what SGLang is told on a CPU, with and without drafts, for any number of ranks."""

from __future__ import annotations

import pytest

from sglang_mi300a.cpu_engine import recipe
from sglang_mi300a.errors import UserError
from tests.cpu_engine import standin_process


def test_the_stand_ins_are_where_the_recipe_says() -> None:
    path = recipe.standins_path()
    assert path.is_absolute()
    assert (path / "sitecustomize.py").is_file()
    assert (path / "sgl_kernel" / "mamba.py").is_file()


def test_it_is_read_without_torch() -> None:
    code = "import sys, sglang_mi300a.cpu_engine.recipe; print('torch' in sys.modules)"
    assert standin_process.output(code) == "False"


def test_without_drafts_attention_is_sglang_s_own_torch_code() -> None:
    assert recipe.server_fields(2, with_draft=False) == {
        "device": "cpu",
        "disable_overlap_schedule": True,
        "attention_backend": "torch_native",
        "tp_size": 2,
    }


def test_with_drafts_attention_is_given_through_the_split_fields_only() -> None:
    assert recipe.server_fields(1, with_draft=True) == {
        "device": "cpu",
        "disable_overlap_schedule": True,
        "prefill_attention_backend": "intel_amx",
        "decode_attention_backend": "intel_amx",
        "tp_size": 1,
    }


def test_no_pool_size_is_decided_here() -> None:
    fields = {**recipe.server_fields(1, True), **recipe.server_fields(1, False)}
    assert not any(word in name for name in fields for word in ("max_", "fraction", "speculative"))


@pytest.mark.parametrize(
    ("tp_size", "cpus", "bind"),
    [
        (1, [0, 1], "0"),
        (2, [0, 1], "0|1"),
        (4, [0, 1], "0|1|0|1"),
        (3, [7, 5], "5|7|5"),
        (2, [3], "3|3"),
        (2, range(64), "0|1"),
    ],
)
def test_each_rank_gets_one_core_and_shares_where_there_are_too_few(
    tp_size: int, cpus: list[int], bind: str
) -> None:
    assert recipe.threads_bind(tp_size, cpus) == bind
    got = recipe.environment(tp_size, cpus, "float32")["SGLANG_CPU_OMP_THREADS_BIND"]
    assert got == bind


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_the_convolution_s_state_has_the_model_s_dtype(dtype: str) -> None:
    assert recipe.environment(1, [0], dtype)["SGLANG_MAMBA_CONV_DTYPE"] == dtype


def test_every_line_says_why() -> None:
    assert all(len(each.why) > 40 or each.why.startswith("as ") for each in recipe.FIELDS)
    assert all(each.why and each.read for each in recipe.VARIABLES)


def test_another_dtype_is_refused_with_those_that_are_tested() -> None:
    with pytest.raises(UserError, match="found float16; supported: float32 or bfloat16"):
        recipe.environment(1, [0], "float16")


def test_no_cores_are_refused() -> None:
    with pytest.raises(UserError, match="found none; supported: at least one"):
        recipe.threads_bind(1, [])
