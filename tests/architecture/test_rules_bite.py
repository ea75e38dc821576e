"""Each house rule finds a planted offence, and leaves what is allowed alone."""

import pytest

from tests.architecture import rules

ROOMS = {"moe", "pools", "cpu_engine"}

OFFENCES = [
    (rules.rooms_read_the_foundation_only, [
        ("moe/work.py", "from sglang_mi300a.pools import plan"),
        ("moe/work.py", "from sglang_mi300a import pools"),
        ("moe/work.py", "import sglang_mi300a.pools.plan"),
        ("moe/work.py", "from ..pools import plan"),
        ("moe/work.py", "def f():\n    from sglang_mi300a.pools import plan"),
        ("moe/work.py", "import importlib\nimportlib.import_module('sglang_mi300a.pools.plan')"),
        ("moe/work.py", "BODY = 'sglang_mi300a.pools.plan:fit'"),
        ("moe/work.py", "from sglang_mi300a.cli import main"),
        ("moe/hooks.py", "from sglang_mi300a.cli import serve"),
        ("moe/hooks.py", "def f():\n    from sglang_mi300a.pools import plan"),
        ("gates.py", "from sglang_mi300a.moe import hooks"),
        ("gates.py", "def f():\n    from sglang_mi300a.moe import hooks"),
        ("plugin.py", "from sglang_mi300a.moe.hooks import HOOKS"),
    ]),
    (rules.sglang_is_reached_through_its_seams, [
        ("moe/work.py", "import sglang"),
        ("moe/work.py", "def f():\n    from sglang.srt import layers"),
        ("moe/work.py", "import importlib\nimportlib.import_module('sglang.srt.layers')"),
        ("moe/hooks.py", "from sglang.srt import layers"),
        ("moe/hooks.py", "class A:\n    from sglang.srt import layers"),
        ("moe/hooks.py", "if True:\n    import sglang.srt"),
        ("cli/hooks.py", "def f():\n    import sglang"),
        ("gates.py", "def f():\n    import sglang"),
    ]),
    (rules.stock_subclasses_are_imported_late, [
        ("moe/hooks.py", "from sglang_mi300a.moe import stock"),
        ("moe/hooks.py", "from sglang_mi300a.moe.stock import Scheme"),
        ("moe/hooks.py", "from .stock import Scheme"),
        ("moe/hooks.py", "try:\n    from . import stock\nexcept ImportError:\n    stock = None"),
    ]),
    (rules.pure_modules_do_without_torch, [
        ("gates.py", "import torch"),
        ("gates.py", "from torch import nn"),
        ("__init__.py", "import torch.distributed"),
        ("moe/hooks.py", "try:\n    import torch\nexcept ImportError:\n    torch = None"),
    ]),
    (rules.only_settings_reads_the_environment, [
        ("gates.py", "import os\nx = os.environ['A']"),
        ("moe/work.py", "import os\ndef f():\n    return os.getenv('A')"),
        ("moe/work.py", "from os import environ"),
        ("cli/serve.py", "import os as system\nx = dict(system.environ)"),
    ]),
    (rules.no_exception_is_caught_blindly, [
        ("gates.py", "try:\n    f()\nexcept:\n    raise"),
        ("gates.py", "try:\n    f()\nexcept Exception:\n    pass"),
        ("gates.py", "try:\n    f()\nexcept Exception as error:\n    raise ValueError from error"),
        ("plugin.py", "try:\n    f()\nexcept (OSError, BaseException):\n    pass"),
        ("gates.py", "import contextlib\nwith contextlib.suppress(Exception):\n    f()"),
        ("doctor/facts.py", "try:\n    f()\nexcept:\n    raise"),
        ("doctor/facts.py", "try:\n    f()\nexcept BaseException:\n    pass"),
    ]),
    (rules.names_say_what_a_thing_decides, [
        ("moe/utils.py", ""),
        ("common.py", ""),
        ("moe/shape_helpers.py", ""),
        ("moe/kernel_v2.py", ""),
        ("moe/work.py", "class PoolManager:\n    pass"),
    ]),
    (rules.hooks_are_applied_by_sglang, [
        ("plugin.py", "HookRegistry.apply_hooks()"),
        ("moe/hooks.py", "def f():\n    apply_hooks()"),
    ]),
    (rules.public_things_are_documented, [
        ("gates.py", "x = 1"),
        ("gates.py", '"""Doc."""\ndef check():\n    return 1'),
        ("gates.py", '"""Doc."""\nasync def check():\n    return 1'),
        ("gates.py", '"""Doc."""\nclass Gate:\n    pass'),
    ]),
]  # fmt: skip

ALLOWED = [
    (rules.rooms_read_the_foundation_only, [
        ("moe/work.py", "from sglang_mi300a import errors, mxfp4\nfrom sglang_mi300a.moe import a"),
        ("moe/work.py", "from . import reference\nSEE = 'sglang_mi300a.moe.stock:Scheme'"),
        ("moe/work.py", "NOTE = 'the pools are sized by sglang_mi300a.pools'"),
        ("cli/serve.py", "from sglang_mi300a import moe\nfrom sglang_mi300a.pools import plan"),
        ("plugin.py", "def f():\n    from sglang_mi300a.moe.hooks import HOOKS"),
        ("moe/hooks.py", "def f():\n    from sglang_mi300a.cli import serve"),
    ]),
    (rules.sglang_is_reached_through_its_seams, [
        ("plugin.py", "import sglang"),
        ("moe/stock.py", "from sglang.srt.layers import x"),
        ("moe/hooks.py", "TARGET = 'sglang.srt.layers.x'\ndef f():\n    from sglang.srt import x"),
        ("moe/work.py", "import sglang_mi300a\nfrom typing import TYPE_CHECKING\n"
                        "if TYPE_CHECKING:\n    import sglang"),
        ("cpu_engine/standins/sgl_kernel/__init__.py", "import sglang"),
    ]),
    (rules.stock_subclasses_are_imported_late, [
        ("moe/hooks.py", "def f():\n    from sglang_mi300a.moe import stock"),
    ]),
    (rules.pure_modules_do_without_torch, [
        ("gates.py", "def f():\n    import torch"),
        ("gates.py", "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    import torch"),
        ("moe/reference.py", "import torch"),
        ("gates.py", "import torchless"),
    ]),
    (rules.only_settings_reads_the_environment, [
        ("settings.py", "import os\nx = os.environ"),
        ("cpu_engine/standins/sitecustomize.py", "import os\nx = os.environ"),
        ("gates.py", "import os\nos.kill(1, 2)\nx = plan.environ"),
    ]),
    (rules.no_exception_is_caught_blindly, [
        ("doctor/facts.py", "try:\n    f()\nexcept Exception:\n    pass"),
        ("cli/demo.py", "try:\n    f()\nexcept BaseException:\n    stop()\n    raise"),
        ("gates.py", "try:\n    f()\nexcept (OSError, ValueError):\n    raise"),
    ]),
    (rules.names_say_what_a_thing_decides, [
        ("moe/work.py", "class Communicator:\n    pass\ndef utility():\n    pass"),
    ]),
    (rules.hooks_are_applied_by_sglang, [
        ("plugin.py", "WHY = 'apply_hooks() is never called'"),
    ]),
    (rules.public_things_are_documented, [
        ("gates.py", '"""Doc."""\ndef _private():\n    return 1\ndef public():\n    """Doc."""'),
        ("moe/__init__.py", ""),
    ]),
]  # fmt: skip


def cases(table):
    return [(rule, file, text) for rule, rows in table for file, text in rows]


@pytest.mark.parametrize(("rule", "file", "text"), cases(OFFENCES))
def test_a_planted_offence_is_found(rule, file, text):
    found = list(rule(rules.Module(file, text, ROOMS)))
    assert found, f"{rule.__name__} saw nothing in {file}: {text!r}"
    assert all(one.file == f"sglang_mi300a/{file}" for one in found)


@pytest.mark.parametrize(("rule", "file", "text"), cases(ALLOWED))
def test_what_is_allowed_is_left_alone(rule, file, text):
    found = [str(one) for one in rule(rules.Module(file, text, ROOMS))]
    assert not found


@pytest.mark.parametrize("table", [OFFENCES, ALLOWED], ids=["offences", "allowed"])
def test_every_rule_has_been_planted(table):
    assert [rule for rule, _ in table] == list(rules.PACKAGE_RULES)


def test_an_offence_names_its_file_and_line():
    module = rules.Module("gates.py", '"""Doc."""\n\nimport torch\n', ROOMS)
    (offence,) = rules.pure_modules_do_without_torch(module)
    assert str(offence).startswith("sglang_mi300a/gates.py:3: imports torch")


@pytest.mark.parametrize("text", [
    "def test_a():\n    f()",
    "def test_a(x):\n    x == 1",
    "class TestA:\n    def test_a(self):\n        self.run()",
    "def check():\n    f()\ndef test_a():\n    check()",
])  # fmt: skip
def test_a_test_without_an_assertion_is_found(text):
    assert list(rules.tests_that_assert_nothing("tests/test_a.py", text))


@pytest.mark.parametrize("text", [
    "def test_a():\n    assert f()",
    "def test_a():\n    with pytest.raises(ValueError):\n        f()",
    "def test_a():\n    np.testing.assert_array_equal(f(), 1)",
    "def check():\n    assert f()\ndef test_a():\n    check()",
    "def no_test():\n    f()",
])  # fmt: skip
def test_a_test_with_an_assertion_is_left_alone(text):
    assert not list(rules.tests_that_assert_nothing("tests/test_a.py", text))


# Spelled in two halves, so that this file itself stays fit for the public.
@pytest.mark.parametrize(("half", "other_half", "what"), [
    ("see /wo", "rk/main", "a path of one machine"),
    ("cd /ro", "ot/x", "a path of one machine"),
    ("ls /ho", "me/alice/models", "a path of one machine"),
    ("--index-url https://py", "pi.org/simple", "a package registry's host"),
    ("https://files.python", "hosted.org/x", "a package registry's host"),
    ("fixes iss", "ue #12", "an issue's number"),
    ("# TO", "DO: finish", "unfinished work"),
    ("as field_", "notes.md says", "a page outside the repository"),
])  # fmt: skip
def test_unfit_text_is_found(half, other_half, what):
    (offence,) = rules.text_unfit_for_the_public("README.md", f"one line\n{half}{other_half}")
    assert offence.line == 2
    assert offence.what.startswith(what)


def test_plain_text_is_left_alone():
    text = "network/ homework/ /root of a tree\nhttps://download.pytorch.org/whl/cpu\nworks on 3.10"
    assert not list(rules.text_unfit_for_the_public("README.md", text))
