"""The package, the tests and all public text keep the house rules."""

import pytest

from tests import repository
from tests.architecture import rules


def package_modules():
    files = {
        name.removeprefix("sglang_mi300a/"): repository.ROOT / name
        for name in repository.files()
        if name.startswith("sglang_mi300a/") and name.endswith(".py")
    }
    rooms = {file.split("/")[0] for file in files if "/" in file} - rules.OVERALL
    rooms -= rules.FOUNDATION_PACKAGES
    return [rules.Module(file, path.read_text(), rooms) for file, path in files.items()]


@pytest.fixture(scope="module")
def modules():
    return package_modules()


@pytest.mark.parametrize("rule", rules.PACKAGE_RULES, ids=lambda rule: rule.__name__)
def test_the_package_keeps_the_rule(rule, modules):
    offences = [str(offence) for module in modules for offence in rule(module)]
    assert not offences, "\n".join(["", *offences])


def test_the_walk_sees_the_package(modules):
    files = {module.file for module in modules}
    assert {"plugin.py", "settings.py", "moe/hooks.py", "moe/stock.py"} <= files


def test_every_test_asserts_something():
    offences = [
        str(offence)
        for name in repository.files()
        if name.startswith("tests/") and name.rsplit("/", 1)[1].startswith("test_")
        for offence in rules.tests_that_assert_nothing(name, (repository.ROOT / name).read_text())
    ]
    assert not offences, "\n".join(["", *offences])


def test_the_text_is_fit_for_the_public():
    offences = []
    for name in repository.files():
        data = (repository.ROOT / name).read_bytes()
        if b"\0" not in data:
            text = data.decode("utf-8")
            offences += [str(one) for one in rules.text_unfit_for_the_public(name, text)]
    assert not offences, "\n".join(["", *offences])
