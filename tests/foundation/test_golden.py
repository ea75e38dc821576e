"""Golden logits: what is written is read again or refused, and how far a server is from them."""

import dataclasses
import math
import random

import pytest

from sglang_mi300a import golden
from sglang_mi300a.artifact_manifest import FileFacts
from sglang_mi300a.errors import UserError
from sglang_mi300a.golden import Answer, Golden, Row

FILES = (FileFacts("a.safetensors", 10, "aa"), FileFacts("b.safetensors", 20, "bb"))
ROW = Row((5, 6, 7), (9, 8), (math.log(0.6), math.log(0.3)), (9, 4, 3), (3.0, 2.5, 1.0))
VALUES = Golden("0.1", "by hand", golden.source_checksum(FILES), (ROW, ROW))
RIGHT = Answer({9: math.log(0.6), 8: math.log(0.3)}, (9, 4))


def test_what_is_written_is_read_again(tmp_path):
    assert golden.read(tmp_path) is None
    golden.write(tmp_path, VALUES)
    assert golden.read(tmp_path) == VALUES
    golden.check_source(VALUES, FILES[::-1], tmp_path)


def test_values_of_another_checkpoint_are_refused(tmp_path):
    other = (FILES[0], dataclasses.replace(FILES[1], size=21))
    with pytest.raises(UserError, match=r"values of checkpoint .*make it again"):
        golden.check_source(VALUES, other, tmp_path)


def test_every_single_changed_byte_is_refused(tmp_path):
    text = VALUES.render()
    for at in range(len(text) - 1):
        changed = text[:at] + chr(ord(text[at]) ^ 1) + text[at + 1 :]
        with pytest.raises(UserError):
            golden.parse(changed, tmp_path)


def test_a_file_that_is_cut_anywhere_is_refused(tmp_path):
    text = VALUES.render()
    for length in random.Random(0).sample(range(len(text)), 40):
        with pytest.raises(UserError):
            golden.parse(text[:length], tmp_path)


@pytest.mark.parametrize(
    "row",
    [
        dataclasses.replace(ROW, token_ids=()),
        dataclasses.replace(ROW, top_ids=(9,)),
        dataclasses.replace(ROW, top_ids=(9, 9)),
        dataclasses.replace(ROW, gaps=()),
        dataclasses.replace(ROW, top_logprobs=(0.5, -1.0)),
        dataclasses.replace(ROW, top_logprobs=(-0.1, -0.1)),
    ],
)
def test_rows_that_contradict_themselves_are_refused(row, tmp_path):
    text = dataclasses.replace(VALUES, rows=(ROW, row)).render()
    with pytest.raises(UserError, match="do not belong together"):
        golden.parse(text, tmp_path)


def test_another_version_and_a_file_without_rows_are_refused(tmp_path, monkeypatch):
    with pytest.raises(UserError, match="no row"):
        golden.parse(dataclasses.replace(VALUES, rows=()).render(), tmp_path)
    text = VALUES.render()
    monkeypatch.setattr(golden, "VERSION", 2)
    with pytest.raises(UserError, match=r"version 1.*version 2"):
        golden.parse(text, tmp_path)


def test_an_endless_file_is_not_read(tmp_path):
    with (tmp_path / golden.NAME).open("wb") as file:
        file.truncate(golden.MAX_BYTES + 1)
    with pytest.raises(UserError, match=f"{golden.MAX_BYTES + 1} bytes"):
        golden.read(tmp_path)


def test_equal_answers_are_at_distance_0_and_foreign_ones_at_1():
    assert golden.distance(ROW, RIGHT.logprobs) == pytest.approx(0, abs=1e-12)
    only = Row((1,), (2,), (0.0,), (), ())
    assert golden.distance(only, {2: -100.0}) == pytest.approx(1)
    assert golden.distance(only, {}) == 1
    assert golden.distance(only, {2: math.nan}) == 1


def test_distance_is_the_share_of_draws_that_would_differ():
    # 0.6, 0.3 and 0.1 for the rest, against 0.5, 0.3 and 0.2.
    moved = {9: math.log(0.5), 8: math.log(0.3)}
    assert golden.distance(ROW, moved) == pytest.approx(0.1)


def test_only_tokens_before_the_first_doubt_are_compared():
    assert ROW.num_sure() == 2
    verdict = golden.judge(VALUES, [RIGHT, dataclasses.replace(RIGHT, next_ids=(9, 4, 77))])
    assert (verdict.num_sure, verdict.num_parted) == (2, 0)
    assert not verdict.is_far
    parted = dataclasses.replace(RIGHT, next_ids=(9, 5))
    verdict = golden.judge(VALUES, [RIGHT, parted])
    assert (verdict.num_sure, verdict.num_parted) == (2, 1)
    assert verdict.is_far
    assert not verdict.is_wrong
    assert "1 of 2 sure continuations equal" in str(verdict)


def test_decode_that_goes_on_otherwise_is_wrong_though_prefill_is_right():
    parted = dataclasses.replace(RIGHT, next_ids=(9, 5))
    verdict = golden.judge(VALUES, [parted, parted])
    assert verdict.mean_distance == pytest.approx(0, abs=1e-12)
    assert verdict.is_wrong
    unsure = dataclasses.replace(ROW, gaps=(1.0, 1.0, 1.0))
    doubtful = dataclasses.replace(VALUES, rows=(unsure, unsure))
    assert not golden.judge(doubtful, [parted, parted]).is_far


def test_nonsense_is_wrong_and_a_little_noise_is_not_even_far():
    nonsense = Answer({9: -12.0, 8: -12.0}, (1, 1))
    assert golden.judge(VALUES, [nonsense, nonsense]).is_wrong
    noisy = Answer({9: math.log(0.6) + 0.1, 8: math.log(0.3) - 0.1}, (9, 4))
    assert not golden.judge(VALUES, [noisy, noisy]).is_far


def test_answers_that_are_no_numbers_are_wrong():
    lost = Answer({9: math.nan, 8: math.nan}, (9, 4))
    assert golden.judge(VALUES, [lost, lost]).is_wrong
