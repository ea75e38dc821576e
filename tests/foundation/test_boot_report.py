"""Ranks report through files; the launcher prints one table."""

from sglang_mi300a import boot_report
from sglang_mi300a.boot_report import RankReport, SeamState


def report(rank, calls=3, live=True, **more):
    return RankReport(
        rank, 100 + rank, "serving", {"moe.quark": SeamState(True, live, calls)}, **more
    )


def test_a_written_report_is_read_back(tmp_path):
    boot_report.write(tmp_path, report(1, facts={"gb_per_s": 2.5}))
    assert boot_report.read_all(tmp_path) == {1: report(1, facts={"gb_per_s": 2.5})}


def test_a_run_directory_that_is_gone_is_not_an_error(tmp_path):
    boot_report.write(tmp_path / "gone", report(0))
    assert boot_report.read_all(tmp_path / "gone") == {}


def test_the_table_takes_the_least_of_the_ranks_and_says_which_is_not_live():
    reports = {0: report(0, calls=9), 1: report(1, calls=2, live=False)}
    assert boot_report.summary(reports) == {
        "moe.quark": {"required": True, "live": False, "calls_min_over_ranks": 2}
    }
    assert "moe.quark  yes       NO    2" in boot_report.table(reports, 2)


def test_a_rank_that_never_loaded_the_package_is_named():
    text = boot_report.table({0: report(0)}, 2)
    assert "1 of 2 ranks loaded the package" in text
    assert "rank 1: no report; it started without the plugin" in text


def test_a_refusal_is_in_the_table():
    text = boot_report.table({0: report(0, refusal="hook x: found y")}, 1)
    assert "rank 0 refused: hook x: found y" in text
