"""All ranks load, or all stop and each says which one could not."""

import re
import threading
from concurrent.futures import ThreadPoolExecutor

import pytest

from sglang_mi300a.errors import UserError
from sglang_mi300a.rank_agreement import alone, on_every_rank


class Together:
    """An all-gather between threads."""

    def __init__(self, num_ranks):
        self.num_ranks = num_ranks
        self.row = [None] * num_ranks
        self.barrier = threading.Barrier(num_ranks, timeout=30)

    def of(self, rank):
        def all_gather(mine):
            self.row[rank] = mine
            self.barrier.wait()
            everyone = list(self.row)
            self.barrier.wait()
            return everyone

        return all_gather


def run(num_ranks, step):
    """Run a step on ranks of one process; return each rank's error, or None."""
    together = Together(num_ranks)

    def of_rank(rank):
        try:
            with on_every_rank(together.of(rank)):
                step(rank)
        except UserError as error:
            return error
        return None

    with ThreadPoolExecutor(num_ranks) as pool:
        return list(pool.map(of_rank, range(num_ranks)))


def unreadable(rank):
    return UserError(f"part of {rank}", found="no permission", allowed="a file", do="chmod it")


def test_nobody_leaves_before_everybody_is_done():
    together, done, left = Together(3), [], []
    the_others_wait = threading.Event()

    def of_rank(rank):
        with on_every_rank(together.of(rank)):
            if rank == 2:
                the_others_wait.wait(5)
            done.append(rank)
        left.append(sorted(done))

    timer = threading.Timer(0.1, the_others_wait.set)
    timer.start()
    with ThreadPoolExecutor(3) as pool:
        list(pool.map(of_rank, range(3)))
    timer.join()
    assert left == [[0, 1, 2]] * 3


def test_one_failure_stops_all_and_every_other_rank_names_it():
    def step(rank):
        if rank == 2:
            raise unreadable(rank)

    errors = run(4, step)
    assert errors[2].where == "part of 2"
    for rank in (0, 1, 3):
        assert re.match(
            "rank 2: part of 2: found no permission; .* do: chmod it", str(errors[rank])
        )


def test_several_failures_are_counted_and_each_keeps_its_own_words():
    def step(rank):
        if rank in (1, 3):
            raise unreadable(rank)

    errors = run(4, step)
    assert [errors[rank].where for rank in (1, 3)] == ["part of 1", "part of 3"]
    assert errors[0].where == "rank 1, 3: part of 1"


def test_success_is_success_alone_and_together():
    assert run(4, lambda rank: None) == [None] * 4
    with on_every_rank(alone):
        pass
    with pytest.raises(UserError, match="^part of 0"), on_every_rank(alone):
        raise unreadable(0)


def test_a_fault_of_the_program_is_not_turned_into_bad_input():
    with pytest.raises(ZeroDivisionError), on_every_rank(alone):
        _ = 1 / 0
