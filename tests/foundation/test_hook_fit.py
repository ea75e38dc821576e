"""Whether a target is the pinned one is judged from source alone."""

import zipfile

import pytest

from sglang_mi300a import hook_fit

FREE = "fake_sglang.pool.free_memory"
SIZE = "fake_sglang.pool.Pool.size"


@pytest.fixture
def tree(fake_root):
    hook_fit._text_of.cache_clear()
    return hook_fit.DirectoryTree(fake_root)


def edit(root, name, old, new):
    path = root / name
    text = path.read_text()
    assert old in text
    path.write_text(text.replace(old, new))
    hook_fit._text_of.cache_clear()


def test_a_pinned_target_fits(tree, pins_of):
    assert hook_fit.judge(SIZE, tree, pins_of(SIZE)).fits


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("return 100", "return 100  # a comment"),
        ("return 100", "\n    return 100   "),
        ("class Pool:", "# moved down\n\n\nclass Pool:"),
    ],
)
def test_comments_blank_lines_and_place_do_not_matter(fake_root, tree, pins_of, old, new):
    pins = pins_of(FREE)
    edit(fake_root, "fake_sglang/pool.py", old, new)
    assert hook_fit.judge(FREE, tree, pins).fits


def test_a_changed_body_does_not_fit_and_says_both_fingerprints(fake_root, tree, pins_of):
    pins = pins_of(FREE)
    edit(fake_root, "fake_sglang/pool.py", "return 100", "return 101")
    fit = hook_fit.judge(FREE, tree, pins)
    assert fit.status == "changed"
    assert pins.targets[FREE].fingerprints[0] in fit.detail


def test_a_changed_signature_is_said_as_a_signature(fake_root, tree, pins_of):
    pins = pins_of(SIZE)
    edit(fake_root, "fake_sglang/pool.py", "def size(self, free)", "def size(self, budget)")
    fit = hook_fit.judge(SIZE, tree, pins)
    assert fit.detail == "takes (self, budget), pinned (self, free)"
    fit = hook_fit.judge(SIZE, tree, pins, needs=("free",))
    assert fit.detail == "takes (self, budget), not free"


def test_a_missing_function_is_moved_and_a_missing_module_is_gone(tree, pins_of):
    pins = pins_of(SIZE)
    assert hook_fit.judge("fake_sglang.pool.Pool.shrink", tree, pins).status == "moved"
    assert hook_fit.judge("fake_sglang.lake.Pool.size", tree, pins).status == "moved"
    assert hook_fit.judge("other_package.pool.size", tree, pins).status == "gone"


def test_a_target_never_pinned_does_not_fit(tree, pins_of):
    fit = hook_fit.judge(FREE, tree, pins_of(SIZE))
    assert (fit.status, "never pinned" in fit.detail) == ("changed", True)


def test_a_registry_must_still_name_the_key(tree):
    target = "fake_sglang.registry.METHODS"
    assert hook_fit.judge_key(target, "quark", tree).fits
    assert "no longer names 'awq'" in hook_fit.judge_key(target, "awq", tree).detail
    assert hook_fit.judge_key("fake_sglang.registry.GONE", "quark", tree).status == "moved"


def test_definitions_inside_if_and_try_are_found(fake_root, tree):
    (fake_root / "fake_sglang/late.py").write_text(
        "try:\n    import nothing_of_that_name\nexcept ImportError:\n    def f(a): return a\n"
        "if True:\n    @staticmethod\n    def g(b): return b\n"
    )
    assert hook_fit.find("fake_sglang.late.f", tree).parameters == ("a",)
    assert hook_fit.find("fake_sglang.late.g", tree).text.startswith("@staticmethod")


def test_a_wheel_is_judged_without_installing_it(fake_root, tmp_path, pins_of):
    wheel = tmp_path / "fake.whl"
    with zipfile.ZipFile(wheel, "w") as archive:
        archive.write(fake_root / "fake_sglang/pool.py", "fake_sglang/pool.py")
    assert hook_fit.judge(FREE, hook_fit.WheelTree(wheel), pins_of(FREE)).fits


def test_a_class_that_is_bound_again_after_its_statement_still_shows_its_methods(fake_root, tree):
    (fake_root / "fake_sglang/late.py").write_text(
        "class C:\n    a: int\n    def f(self, x): return x\nC = wrapped(C)\n"
    )
    assert hook_fit.find("fake_sglang.late.C.f", tree).parameters == ("self", "x")
    assert hook_fit.find("fake_sglang.late.C", tree).is_assignment
    assert hook_fit.annotated_names("fake_sglang.late.C", tree) == {"a"}
    assert hook_fit.annotated_names("fake_sglang.late.D", tree) == set()
