"""What stock SGLang takes and gets wrong is refused by name, or put right and said."""

from __future__ import annotations

import pytest

from sglang_mi300a.cli import stock_settings
from sglang_mi300a.errors import UserError

NONE_OF_THEM = dict.fromkeys(stock_settings._READ_AS_THEY_ARE, False)
TUNED = {
    **NONE_OF_THEM,
    "disaggregation_mode": "null",
    "radix_cache_backend": "gdn-turntail",
    "mamba_radix_cache_strategy": "extra_buffer",
    "attention_backend": "aiter",
    "disable_overlap_schedule": True,
    "page_size": 16,
    "mem_fraction_static": 0.9,
    "mamba_ssm_dtype": "float32",
    "enable_linear_replayssm_spec": True,
    "context_length": None,
}
LONG, SHORT = 262_144, 8_192


def put_right(fields=None, environment=None, context=LONG):
    return stock_settings.put_right({**TUNED, **(fields or {})}, environment or {}, context)


@pytest.mark.parametrize(
    ("change", "environment", "said"),
    [
        ({"strip_thinking_cache": True}, {}, "--strip-thinking-cache: found given"),
        ({}, {"SGLANG_MAMBA_SSM_DTYPE": "bfloat16"}, "overwrites with --mamba-ssm-dtype float32"),
        (
            {"mamba_ssm_dtype": None},  # with replay SGLang takes float32
            {"SGLANG_MAMBA_SSM_DTYPE": "bfloat16"},
            "pass --mamba-ssm-dtype bfloat16",
        ),
        ({"enable_hierarchical_cache": True}, {}, "--enable-hierarchical-cache: found HiCache"),
        ({"enable_int8_mamba_checkpoint": True}, {}, "int8 checkpoints"),
        ({}, {"SGLANG_EXPERIMENTAL_CPP_RADIX_TREE": "True"}, "the C\\+\\+ tree"),
        ({}, {"SGLANG_UNIFIED_RADIX_TREE_CORE_BACKEND": "rust"}, "'rust'"),
        ({"mamba_radix_cache_strategy": "extra_buffer_lazy"}, {}, "'extra_buffer_lazy'"),
        ({"mamba_radix_cache_strategy": "auto", "page_size": 1}, {}, "'no_buffer'"),
        ({}, {"SGLANG_MI300A_ACCUMULATE": "many"}, "SGLANG_MI300A_ACCUMULATE: found 'many'"),
    ],
)
def test_a_setting_that_would_not_do_what_it_says_is_refused(change, environment, said):
    with pytest.raises(UserError, match=said):
        put_right(change, environment)


@pytest.mark.parametrize(
    ("change", "environment"),
    [
        ({}, {}),
        ({}, {"SGLANG_MAMBA_SSM_DTYPE": "float32"}),
        (
            {"mamba_ssm_dtype": None, "enable_linear_replayssm_spec": False},
            {"SGLANG_MAMBA_SSM_DTYPE": "bfloat16"},
        ),
        ({"mamba_ssm_dtype": "bfloat16"}, {"SGLANG_MAMBA_SSM_DTYPE": "bfloat16"}),
        ({}, {"SGLANG_EXPERIMENTAL_CPP_RADIX_TREE": "0"}),
        (
            {"radix_cache_backend": None, "enable_hierarchical_cache": True},
            {"SGLANG_EXPERIMENTAL_CPP_RADIX_TREE": "1"},
        ),
    ],
)
def test_what_sglang_does_as_asked_passes(change, environment):
    assert set(put_right(change, environment).fields) == {"mem_fraction_static"}


def test_the_memory_fraction_that_was_asked_for_is_what_sglang_makes_of_the_one_passed():
    right = put_right({"mem_fraction_static": 0.72})
    assert right.fields["mem_fraction_static"] * 0.85 == pytest.approx(0.72)
    (note,) = right.notes
    assert "0.72 asked, 0.8471 passed" in note


@pytest.mark.parametrize(
    ("change", "context"),
    [
        ({}, SHORT),
        ({"attention_backend": "triton"}, LONG),
        ({"context_length": SHORT}, LONG),
        ({"mem_fraction_static": None}, LONG),
    ],
)
def test_a_fraction_that_sglang_leaves_alone_is_passed_as_it_is(change, context):
    assert put_right(change, context=context) == stock_settings.PutRight()
