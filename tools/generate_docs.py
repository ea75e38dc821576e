"""Write the pages of docs/ that are generated."""

from __future__ import annotations

import runpy
from pathlib import Path

from sglang_mi300a import plugin
from sglang_mi300a.cli import hooks
from sglang_mi300a.cli.main import COMMANDS
from sglang_mi300a.doctor import known_trouble

DOCS = Path(__file__).parents[1] / "docs"


def pages() -> dict[str, str]:
    """Return the text of each generated page by file name."""
    return {
        "hooks.md": hooks.markdown(plugin.all_seams()) + "\n",
        "commands.md": commands(),
        "findings.md": known_trouble.page(),
        "prefix_cache_results.md": _page_beside("prefix_cache_page.py"),
    }


def _page_beside(name: str) -> str:
    page: str = runpy.run_path(str(Path(__file__).with_name(name)))["page"]()
    return page


def commands() -> str:
    """Return the table of all commands."""
    rows = [
        "# Commands",
        "",
        "Generated from the program's own table. `sglang-mi300a COMMAND --help` teaches each.",
        "Exit codes: 0 fine, 1 a judgement went against, 2 bad input or usage, 130 interrupted.",
        "",
        "| command | what it does |",
        "|---|---|",
    ]
    rows += [f"| `sglang-mi300a {c.name}` | {c.summary} |" for c in COMMANDS]
    rows.append("| `shard-weights` | the same as `sglang-mi300a shard-weights` |")
    return "\n".join(rows) + "\n"


if __name__ == "__main__":
    for name, text in pages().items():
        (DOCS / name).write_text(text, encoding="utf-8")
        print(f"docs/{name}")
