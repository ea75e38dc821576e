"""The walk as one HTML page: nothing is loaded from anywhere, every text is escaped."""

from __future__ import annotations

import base64
from collections.abc import Sequence
from html import escape

from sglang_mi300a.demo.account import (
    EVIDENCE,
    FAILED,
    PASSED,
    Account,
    Command,
    Line,
    Piece,
    Table,
)

MOST_OPEN_LINES = 12
"""Of a command's output; longer ones are folded."""

STYLE = """
:root { color-scheme: light dark; --line: #8884; --soft: #8881; }
body { font: 16px/1.5 system-ui, sans-serif; max-width: 54rem; margin: 0 auto; padding: 1rem; }
h1 { font-size: 1.5rem; line-height: 1.2; } h2 { font-size: 1.15rem; margin: 0 0 .5rem; }
section { border-top: 1px solid var(--line); padding: 1rem 0; }
.badge { font: 600 .8rem/1 ui-monospace, monospace; padding: .2rem .45rem; border-radius: .3rem;
  color: #fff; background: #274653; white-space: nowrap; }
.E1 { background: #6b4a86; } .passed { background: #1f7a5c; } .failed { background: #b3261e; }
.not-run { background: #6b6b6b; }
.scroll, pre { overflow-x: auto; } pre { background: var(--soft); padding: .6rem;
  font: .8rem/1.4 ui-monospace, monospace; border-radius: .3rem; }
table { border-collapse: collapse; font-size: .9rem; }
th, td { text-align: left; vertical-align: top; padding: .25rem .8rem .25rem 0;
  border-bottom: 1px solid var(--line); }
.fault { border-left: .3rem solid #b3261e; padding-left: .6rem; }
figure { margin: 0; background: #fff; } img { max-width: 100%; height: auto; }
figcaption, .took { color: #888; font-size: .85rem; }
""".strip()


def render(accounts: Sequence[Account], *, version: str) -> str:
    """Return the page.

    Args:
        accounts: Of all steps, in order.
        version: Of this package.
    """
    steps = "\n".join(_section(number, one) for number, one in enumerate(accounts, 1))
    levels = "".join(
        f"<tr><td>{_badge(name, name)}</td><td>{escape(means)}</td></tr>"
        for name, means in EVIDENCE.items()
    )
    return f"""<!DOCTYPE html>
<html lang="en">
<head>
<meta charset="utf-8"/>
<meta name="viewport" content="width=device-width, initial-scale=1"/>
<title>sglang-mi300a demo</title>
<style>
{STYLE}
</style>
</head>
<body>
<h1>sglang-mi300a {escape(version)}: a walk through it, without an MI300A</h1>
<p><strong>{escape(result(accounts))}</strong></p>
<p>Stock SGLang serves a tiny model of the architecture of amd/Qwen3.5-397B-A17B-MXFP4 through this
package, on this machine's processors. Each step says how far its evidence goes. Nothing here was
measured on an MI300A, and no speed on one is claimed.</p>
<div class="scroll"><table>{levels}</table></div>
{_contents(accounts)}
{steps}
</body>
</html>
"""


def result(accounts: Sequence[Account]) -> str:
    """Return the walk's result in one sentence."""
    failed = [one.name for one in accounts if one.status == FAILED]
    passed = sum(one.status == PASSED for one in accounts)
    left_out = [one.name for one in accounts if one.status not in (PASSED, FAILED)]
    parts = [f"{passed} of {len(accounts)} steps passed"]
    if failed:
        parts.append(f"failed: {', '.join(failed)}")
    if left_out:
        parts.append(f"not run: {', '.join(left_out)}")
    return "; ".join(parts)


def _contents(accounts: Sequence[Account]) -> str:
    rows = "".join(
        f'<tr><td><a href="#{escape(one.name)}">{escape(one.name)}</a></td>'
        f"<td>{_badge(one.evidence, one.evidence)}</td><td>{_status(one)}</td>"
        f"<td>{one.seconds:.0f} s</td></tr>"
        for one in accounts
    )
    return (
        '<div class="scroll"><table><tr><th>step</th><th>evidence</th><th>result</th>'
        f"<th>took</th></tr>{rows}</table></div>"
    )


def _section(number: int, account: Account) -> str:
    faults = "".join(f'<p class="fault">failed: {escape(one)}</p>' for one in account.faults)
    pieces = "\n".join(_piece(one) for one in account.pieces)
    return (
        f'<section id="{escape(account.name)}">\n<h2>{number}. {escape(account.name)}: '
        f"{escape(account.title)}</h2>\n<p>{_badge(account.evidence, account.evidence)} "
        f'{_status(account)} <span class="took">{account.seconds:.1f} s</span></p>\n'
        f"{faults}{pieces}\n</section>"
    )


def _piece(piece: Piece) -> str:
    if isinstance(piece, Line):
        return f"<p>{escape(piece.text)}</p>"
    if isinstance(piece, Command):
        said = f"<pre>$ {escape(piece.typed)}\n{escape(piece.output)}</pre>"
        num_lines = len(piece.output.splitlines())
        if num_lines <= MOST_OPEN_LINES:
            return said
        return (
            f"<details><summary><code>{escape(piece.typed)}</code> ({num_lines} lines, exit code "
            f"{piece.exit_code})</summary>{said}</details>"
        )
    if isinstance(piece, Table):
        head = "".join(f"<th>{escape(cell)}</th>" for cell in piece.head)
        rows = "".join(
            f"<tr>{''.join(f'<td>{escape(cell)}</td>' for cell in row)}</tr>" for row in piece.rows
        )
        return f'<div class="scroll"><table><tr>{head}</tr>{rows}</table></div>'
    data = base64.b64encode(piece.data).decode("ascii")
    return (
        f'<figure><img alt="{escape(piece.shows)}" src="data:{escape(piece.media_type)};base64,'
        f'{data}"/><figcaption>{escape(piece.shows)}</figcaption></figure>'
    )


def _status(account: Account) -> str:
    return _badge(account.status, account.status.replace(" ", "-"))


def _badge(text: str, kind: str) -> str:
    return f'<span class="badge {escape(kind)}">{escape(text)}</span>'
