"""docs/refuted.md: whole, and true of the kernels where it speaks of them."""

import json
import re

import pytest

from sglang_mi300a.cli import main as program
from sglang_mi300a.moe.kernels import catalogue, prediction
from tests import repository

TEXT = (repository.ROOT / "docs/refuted.md").read_text()
SECTIONS = {
    title: [
        [cell.strip() for cell in line.strip("|").split("|")]
        for line in body.splitlines()
        if line.startswith("|")
    ]
    for title, body in re.findall(r"^## ([^\n]+)\n(.*?)(?=^## |\Z)", TEXT, re.M | re.S)
}


@pytest.mark.parametrize("title", SECTIONS)
def test_every_row_is_whole(title):
    head, _, *rows = SECTIONS[title]
    assert len(rows) >= 2
    for row in rows:
        assert len(row) == len(head), row
        assert all(row), row
        assert row[1] in ("S", "B"), row


def test_what_is_done_all_the_same_says_what_would_end_it():
    _, _, *rows = SECTIONS["Done here all the same"]
    for row in rows:
        assert row[5].startswith(("`kernels bench`", "`tune moe`", "the probe at start-up")), row


def test_the_commands_it_names_are_there(capsys):
    commands = set(re.findall(r"`(?:sglang-mi300a )?(\w+ \w+)`", TEXT))
    assert commands == {"kernels bench", "tune moe"}
    for words in commands:
        with pytest.raises(SystemExit) as stopped:
            program.main([*words.split(), "--help"])
        assert stopped.value.code == 0
    assert "--samples" in capsys.readouterr().out


def test_what_it_says_of_the_kernels_is_so():
    first = catalogue.matrix_kernel("gate_up", "subnormals", 16, 256)
    assert f"{first.lds_bytes:,} bytes and two fit" in TEXT
    assert first.workgroups_per_cu == 2
    large = catalogue.matrix_kernel("gate_up", "subnormals", 32, 256)
    counted = json.loads((repository.ROOT / "benchmarks/results/moe_counts.json").read_text())
    (row,) = [row for row in counted["kernels"] if row["name"] == large.name]
    assert f"{row['vgpr']} of {large.registers} registers" in TEXT
    assert prediction.TOP_K == 10
    assert "ten experts read the same 8 KiB" in TEXT
