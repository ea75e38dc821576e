"""The wheel at work, away from its source tree, beside nothing but its dependencies."""

import json

from sglang_mi300a import shipped


def test_both_commands_explain_themselves(installed):
    for program in ("sglang-mi300a", "shard-weights"):
        done = installed.run(program, "--help")
        assert done.returncode == 0, done.stderr
        assert done.stdout.startswith(f"usage: {program}")


def test_the_command_says_its_version(installed):
    done = installed.run("sglang-mi300a", "--version")
    assert done.returncode == 0, done.stderr
    assert shipped.version() in done.stdout


def test_it_is_the_wheel_and_neither_torch_nor_sglang_that_is_there(installed):
    code = (
        "import importlib.util as u, sglang_mi300a as p;"
        "print(p.__file__, u.find_spec('torch'), u.find_spec('sglang'))"
    )
    file, torch, sglang = installed.says(code).split()
    assert file.startswith(str(installed.root))
    assert (torch, sglang) == ("None", "None")


def test_every_foundation_module_and_every_hook_list_imports_without_torch(installed):
    code = (
        "import importlib, pkgutil, sglang_mi300a as p\n"
        "names = [m.name for m in pkgutil.iter_modules(p.__path__) if not m.ispkg]\n"
        "for name in names: importlib.import_module(f'sglang_mi300a.{name}')\n"
        "print(len(names), len(importlib.import_module('sglang_mi300a.plugin').all_seams()))"
    )
    modules, seams = map(int, installed.says(code).split())
    assert modules >= 10
    assert seams > 0


def test_the_shipped_data_lies_inside_the_installation(installed):
    code = (
        "from sglang_mi300a import shipped as s; import json;"
        "print(json.dumps([str(s.tuning_tables()), str(s.patches()), s.facts()]))"
    )
    tables, patches, facts = json.loads(installed.says(code))
    assert tables.startswith(str(installed.root))
    assert patches.startswith(str(installed.root))
    assert facts == shipped.facts()
