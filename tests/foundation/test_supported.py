"""Versions are compared by release segment."""

import pytest

from sglang_mi300a import supported
from sglang_mi300a.errors import UserError


def versions(**change):
    return {"torch": "2.13.0+cpu", "sglang": "0.5.18", **change}.get


@pytest.mark.parametrize("torch", ["2.9.0a0", "2.9.0a0+git1234", "2.13.0+cpu", "2.10.1.dev3"])
@pytest.mark.parametrize("sglang", ["0.5.18", "0.5.18.dev4+gabc", "0.5.18+rocm700", "0.5.18rc1"])
def test_images_with_development_and_local_versions_are_supported(torch, sglang):
    assert supported.check_versions(versions(torch=torch, sglang=sglang)) is None


@pytest.mark.parametrize(
    ("change", "found"),
    [
        ({"sglang": "0.5.17"}, "sglang: found 0.5.17"),
        ({"sglang": "0.5.19"}, "sglang: found 0.5.19"),
        ({"sglang": None}, "sglang: found not installed"),
        ({"sglang": "main"}, "sglang: found main"),
        ({"torch": "2.8.0"}, "torch: found 2.8.0"),
    ],
)
def test_another_version_is_refused_with_the_supported_range(change, found):
    with pytest.raises(UserError, match=found) as refused:
        supported.check_versions(versions(**change))
    assert "supported: " in str(refused.value)


def test_a_python_too_old_is_refused():
    with pytest.raises(UserError, match="python: found 3.9.18"):
        supported.check_versions(versions(), python=(3, 9, 18))
