"""The source tree's own answers, and the small reader of pyproject.toml behind them."""

import sys

import pytest
from packaging.specifiers import SpecifierSet

from sglang_mi300a import shipped
from sglang_mi300a.errors import UserError
from tests import repository

PYPROJECT = repository.ROOT / "pyproject.toml"


def test_in_the_tree_the_data_folders_lie_beside_the_package():
    assert shipped.tuning_tables() == repository.ROOT / "tuning_tables"
    assert shipped.patches() == repository.ROOT / "patches"


@pytest.mark.skipif(sys.version_info < (3, 11), reason="Python 3.10 has no TOML reader to compare")
def test_the_small_reader_reads_what_a_toml_reader_reads():
    import tomllib

    stated = tomllib.loads(PYPROJECT.read_text())
    assert shipped.facts() == {
        "version": stated["project"]["version"],
        "python": stated["project"]["requires-python"],
        **stated["tool"]["sglang_mi300a"],
    }


def test_the_supported_versions_are_specifiers():
    assert set(shipped.supported()) == {"python", "sglang", "torch"}
    for text in shipped.supported().values():
        assert SpecifierSet(text)


def test_the_small_reader_wants_every_entry():
    without = PYPROJECT.read_text().replace("requires-python", "requires-snake")
    with pytest.raises(KeyError, match="requires-python"):
        shipped.facts_in(without)


def test_a_folder_that_was_not_installed_is_reported(monkeypatch, tmp_path):
    monkeypatch.setattr(shipped, "_PACKAGE", tmp_path / "site-packages" / "sglang_mi300a")
    with pytest.raises(UserError, match="tuning_tables.*install it again"):
        shipped.tuning_tables()
    with pytest.raises(UserError, match=r"supported\.json.*install it again"):
        shipped.supported()
