# SPDX-License-Identifier: PostgreSQL
"""Parts of an HTML page that loads nothing: the page and its style, escaped text, tables, facts, pictures."""

from __future__ import annotations

import base64
import html
from collections.abc import Iterable, Sequence

from pg_dpml.names import visible_lines
from pg_dpml.reports import plots

__all__ = ["LONGEST_WORD", "document", "escape", "facts", "is_long", "paragraph", "picture", "table"]

BROAD = 500
"""Width in pixels above which a picture scrolls on a telephone; a narrower one shrinks to fit."""

LONGEST_WORD = 24
"""Most letters of a word that is never broken. A longer one may be broken at the end of a line."""

_STYLE = """
:root { color-scheme: light dark; --text: #222; --muted: #555; --line: #ddd; --back: #fff; --card: #f3f7fc;
  --edge: #9db8d9; --group: #eef0f3 }
@media (prefers-color-scheme: dark) { :root { --text: #e4e6ea; --muted: #a9afb8; --line: #3a4048;
  --back: #16191d; --card: #1d2530; --edge: #47617f; --group: #23282f } }
body { font: 1rem/1.5 system-ui, sans-serif; color: var(--text); background: var(--back); max-width: 54rem;
  margin: 2rem auto; padding: 0 1rem }
h1 { font-size: 1.75rem; line-height: 1.2 } h2 { font-size: 1.25rem; margin-top: 2.5rem }
table { border-collapse: collapse; margin: .8rem 0 }
.wide { overflow-x: auto }
th, td { text-align: left; vertical-align: top; padding: .3rem 1.2rem .3rem 0;
  border-bottom: 1px solid var(--line) }
.n { text-align: right; white-space: nowrap; font-variant-numeric: tabular-nums }
.whole { white-space: nowrap }
.key { white-space: nowrap; font-weight: 600 }
.long { overflow-wrap: anywhere; min-width: 12rem }
.group td { background: var(--group); font-weight: 600; padding-left: .4rem }
.level { padding-left: 1.4rem }
.card { border: 1px solid var(--edge); background: var(--card); border-radius: 6px; padding: .3rem 1.2rem }
.stamp { color: #fff; background: #b00000; font-weight: bold; border-radius: 6px; padding: .8rem 1.2rem }
img { max-width: 100%; height: auto; background: #fff; border-radius: 4px }
figure { margin: 1rem 0; overflow-x: auto }
.note { color: var(--muted); font-size: .875rem }
@media (max-width: 36rem) { th, td { padding-right: .7rem } .broad { max-width: none; width: 34rem }
  .facts, .facts tbody, .facts tr, .facts td { display: block; padding-right: 0 }
  .facts td { border: 0 } .facts tr { border-bottom: 1px solid var(--line); padding: .3rem 0 }
  .key { white-space: normal } }
@media print { body { max-width: none; margin: 0; font-size: 10pt; color: #000; background: #fff }
  .card { background: none } h2, tr, figure, .facts { break-inside: avoid }
  h2, .group { break-after: avoid } img { max-height: 21cm; object-fit: contain; object-position: left } }
"""


def escape(text: str) -> str:
    """Escape a text for HTML. Control characters become visible."""
    return html.escape(visible_lines(text))


def document(title: str, sections: Iterable[str]) -> str:
    """A whole document that loads nothing. Sections are HTML; empty ones are left out."""
    return (
        '<!DOCTYPE html>\n<html lang="en">\n<head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        f"<title>{escape(title)}</title><style>{_STYLE}</style></head>\n<body>\n"
        + "\n".join([f"<h1>{escape(title)}</h1>", *filter(None, sections)])
        + "\n</body>\n</html>\n"
    )


def paragraph(text: str, of_class: str = "") -> str:
    """A text as a paragraph, of a class of the style where one is named."""
    attribute = f' class="{of_class}"' if of_class else ""
    return f"<p{attribute}>{escape(text)}</p>"


def is_long(text: str) -> bool:
    """Whether a text has a word longer than `LONGEST_WORD`."""
    return max(map(len, text.split()), default=0) > LONGEST_WORD


def table(rows: Iterable[Sequence[str]], head: Sequence[str] = (), numeric: Sequence[int] = ()) -> str:
    """A table of escaped cells, which scrolls where it is wider than the page.

    Parameters
    ----------
    rows : iterable of sequence of str
        In a row shorter than `head` the last cell is a text that spans the remaining columns.
    head : sequence of str
    numeric : sequence of int
        Indices of the columns to align right.
    """

    def cell(text: str, tag: str, i: int, over: int) -> str:
        attributes = " class=n" if i in numeric and over == 1 else " class=long" if is_long(text) else ""
        attributes += f" colspan={over}" if over > 1 else ""
        return f"<{tag}{attributes}>{escape(text)}</{tag}>"

    def line(cells: Sequence[str], tag: str) -> str:
        over = [1] * (len(cells) - 1) + [max(len(head) - len(cells), 0) + 1]
        return f"<tr>{''.join(cell(text, tag, i, over[i]) for i, text in enumerate(cells))}</tr>"

    body = "".join(line(row, "td") for row in rows)
    return f"<div class=wide><table>{line(head, 'th') if head else ''}{body}</table></div>"


def facts(rows: Iterable[tuple[str, str]]) -> str:
    """A table of names and their values. On a narrow page the value stands below the name."""

    def line(name: str, text: str) -> str:
        of_class = " class=long" if is_long(text) else ""
        return f"<tr><td class=key>{escape(name)}</td><td{of_class}>{escape(text)}</td></tr>"

    return f"<div class=wide><table class=facts>{''.join(line(*row) for row in rows)}</table></div>"


def picture(png: bytes, caption: str) -> str:
    """A figure with its caption. The picture's bytes stand in the document."""
    data = base64.b64encode(png).decode("ascii")
    width = int.from_bytes(png[16:20], "big") * 96 // plots.DPI
    of_class = " class=broad" if width > BROAD else ""
    return (
        f'<figure><img{of_class} alt="{escape(caption)}" width="{width}" src="data:image/png;base64,{data}">'
        f'<figcaption class="note">{escape(caption)}</figcaption></figure>'
    )
