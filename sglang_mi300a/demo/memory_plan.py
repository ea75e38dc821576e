"""The memory plan of the 397B model on a described node, as text and picture; and one refused."""

from __future__ import annotations

import importlib.util

from sglang_mi300a import served_model
from sglang_mi300a.demo.account import Account, Picture
from sglang_mi300a.demo.child import sglang_mi300a
from sglang_mi300a.demo.journey import Journey
from sglang_mi300a.errors import EXIT_JUDGED_AGAINST, EXIT_OK

NODE, SMALL_NODE = "mi300a-x4", "mi300a-x4-default-ttm"


def run(journey: Journey, account: Account) -> None:
    """Plan for a node that has room and for one that has not."""
    plan = ("plan", "--model", served_model.SHIPPED_CONFIG, "--preset", "tuned")
    picture = journey.scratch / "plan.svg"
    has_pictures = importlib.util.find_spec("matplotlib") is not None
    plot = ("--plot", picture) if has_pictures else ()
    sglang_mi300a(
        account, journey, *plan, "--node", NODE, *plot, expect=EXIT_OK, says=["\nit fits"]
    )
    if has_pictures and picture.is_file():
        shows = f"memory plan of preset tuned for Qwen3.5-397B-A17B on {NODE}, one bar an APU"
        account.add(Picture("image/svg+xml", picture.read_bytes(), shows))
    elif not has_pictures:
        account.say("no picture: matplotlib is missing (pip install 'sglang-mi300a[plots]')")
    account.say("the same plan where the driver's memory limit was left at its default:")
    sglang_mi300a(
        account, journey, *plan, "--node", SMALL_NODE,
        expect=EXIT_JUDGED_AGAINST, says=["IT DOES NOT FIT", "pages_limit"],
    )  # fmt: skip
    account.say(
        "both nodes are described from published figures, and each line says how it is known; what "
        "a real node's driver reports has not been seen"
    )
