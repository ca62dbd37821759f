"""HTML pages with charts that stand by themselves: one file, inline SVG, no script, nothing fetched.

in: figures. out: text of a page. Charts have a title and a description for readers that do not see them, colours that differ in
lightness and lines that differ in dashes (so they print in grey), and follow the reader's dark or light setting.

Invariant: every text that comes from data is escaped.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from html import escape

WIDTH, LEFT, RIGHT, TOP, BOTTOM = 860, 72, 16, 14, 34
# Okabe and Ito's palette, told apart by most colour-blind readers too; each line also has dashes of its own.
COLOURS = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#56b4e9", "#e69f00", "#7f7f7f", "#000000")
DASHES = ("", "7 3", "2 3", "9 3 2 3", "5 5", "12 4", "1 4", "")
SERIES_MAX = len(COLOURS)

_STYLE = """
:root { --ink: #1b1f24; --soft: #59636e; --line: #d1d9e0; --ground: #ffffff; --card: #f6f8fa; color-scheme: light dark; }
@media (prefers-color-scheme: dark) { :root { --ink: #e6edf3; --soft: #9198a1; --line: #3d444d; --ground: #0d1117; --card: #151b23; } }
@media print { :root { --ink: #000; --soft: #333; --line: #999; --ground: #fff; --card: #fff; } figure { break-inside: avoid; } }
* { box-sizing: border-box; }
body { font: 15px/1.5 system-ui, sans-serif; color: var(--ink); background: var(--ground);
  margin: 0 auto; padding: 2rem 1rem; max-width: 58rem; }
h1 { font-size: 1.6rem; margin: 0; } h2 { font-size: 1.15rem; margin: 2.2rem 0 .5rem; } p { margin: .4rem 0; color: var(--soft); }
figure { margin: .6rem 0 1.2rem; } svg { width: 100%; height: auto; display: block; } figcaption { color: var(--soft); font-size: .87rem; }
svg text { font: 12px system-ui, sans-serif; fill: var(--soft); } svg .name { fill: var(--ink); }
svg .grid { stroke: var(--line); stroke-width: 1; } svg .axis { stroke: var(--soft); stroke-width: 1; }
.tiles { display: flex; flex-wrap: wrap; gap: .7rem; margin: 1.2rem 0; padding: 0; list-style: none; }
.tiles li { background: var(--card); border: 1px solid var(--line); border-radius: 8px; padding: .6rem .9rem; min-width: 8rem; }
.tiles b { display: block; font-size: 1.35rem; font-variant-numeric: tabular-nums; } .tiles span { color: var(--soft); font-size: .85rem; }
.key { display: flex; flex-wrap: wrap; gap: .3rem 1.1rem; margin: .2rem 0 0; padding: 0; list-style: none; font-size: .87rem; }
.key svg { display: inline-block; width: 34px; height: 10px; margin-right: .4rem; vertical-align: middle; }
.wide { overflow-x: auto; } table { border-collapse: collapse; font-size: .9rem; font-variant-numeric: tabular-nums; width: 100%; }
th, td { text-align: right; padding: .3rem .6rem; border-bottom: 1px solid var(--line); white-space: nowrap; }
th:first-child, td:first-child { text-align: left; } thead th { color: var(--soft); font-weight: 600; }
footer { margin-top: 2.5rem; color: var(--soft); font-size: .83rem; border-top: 1px solid var(--line); padding-top: .6rem; }
"""


@dataclass(frozen=True)
class Series:
    """A line. points: (x, y), x ascending; y None: no value there."""

    name: str
    points: Sequence[tuple[float, float | None]]


def page(title: str, about: str, parts: Sequence[str]) -> str:
    """A whole page. Args: about: one or two sentences; parts: what the functions below made, in order."""
    return (
        '<!DOCTYPE html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        f"<title>{escape(title)}</title>\n<style>{_STYLE}</style>\n</head>\n<body>\n<main>\n<h1>{escape(title)}</h1>\n<p>{escape(about)}</p>\n"
        + "\n".join(parts)
        + "\n</main>\n<footer>FlintMQ. Times are UTC.</footer>\n</body>\n</html>\n"
    )


def heading(text: str, about: str = "") -> str:
    """A section begins."""
    return f"<h2>{escape(text)}</h2>" + (f"\n<p>{escape(about)}</p>" if about else "")


def tiles(figures: Sequence[tuple[str, str]]) -> str:
    """The most important figures: (value, what it is)."""
    return (
        '<ul class="tiles">' + "".join(f"<li><b>{escape(value)}</b><span>{escape(label)}</span></li>" for value, label in figures) + "</ul>"
    )


def table(head: Sequence[str], rows: Sequence[Sequence[str]], caption: str = "") -> str:
    """A table; the first column is text, the others numbers."""
    top = "".join(f'<th scope="col">{escape(cell)}</th>' for cell in head)
    body = "".join("<tr>" + "".join(f"<td>{escape(cell)}</td>" for cell in row) + "</tr>" for row in rows)
    caption_html = f"<caption>{escape(caption)}</caption>" if caption else ""
    return f'<div class="wide"><table>{caption_html}<thead><tr>{top}</tr></thead><tbody>{body}</tbody></table></div>'


def line_chart(
    title: str,
    series: Sequence[Series],
    *,
    unit: str,
    start_us: int = 0,
    height: int = 260,
    y_max: float | None = None,
    steps: bool = False,
) -> str:
    """Lines over time, at most SERIES_MAX of them.

    Args: unit: of y; start_us: wall clock at x = 0, x in seconds; y_max: top of the axis; steps: values hold until the next one.
    """
    shown = list(series)[:SERIES_MAX]
    xs = [x for one in shown for x, _ in one.points]
    ys = [y for one in shown for _, y in one.points if y is not None]
    if not xs or not ys:
        return f"<p>{escape(title)}: nothing to show.</p>"
    x_low, x_high = min(xs), max(max(xs), min(xs) + 1e-9)
    marks = nice_marks(0.0, y_max if y_max is not None else max(max(ys), 1e-9))
    top = max(marks[-1], y_max or 0.0)
    plot_width, plot_height = WIDTH - LEFT - RIGHT, height - TOP - BOTTOM

    def place(x: float, y: float) -> tuple[float, float]:
        return LEFT + (x - x_low) / (x_high - x_low) * plot_width, TOP + (1 - y / top) * plot_height

    parts = []
    for mark in marks:
        _, y = place(x_low, mark)
        parts.append(f'<line class="grid" x1="{LEFT}" x2="{WIDTH - RIGHT}" y1="{y:.1f}" y2="{y:.1f}"/>')
        parts.append(f'<text x="{LEFT - 8}" y="{y + 4:.1f}" text-anchor="end">{escape(short(mark))}</text>')
    for i in range(5):
        x = x_low + (x_high - x_low) * i / 4
        mark_x, anchor = LEFT + plot_width * i / 4, ("start", "middle", "middle", "middle", "end")[i]
        text = clock_text(start_us, x, x_high - x_low)
        parts.append(f'<text x="{mark_x:.1f}" y="{height - 10}" text-anchor="{anchor}">{escape(text)}</text>')
    parts.append(f'<line class="axis" x1="{LEFT}" x2="{WIDTH - RIGHT}" y1="{height - BOTTOM}" y2="{height - BOTTOM}"/>')
    parts.append(f'<text x="{LEFT - 8}" y="{TOP - 3}" text-anchor="end">{escape(unit)}</text>')
    for i, one in enumerate(shown):
        parts.append(f'<path d="{_path(one.points, place, steps)}" fill="none" {_stroke(i)}/>')
    about = "; ".join(
        f"{one.name}: from {short(min(values))} to {short(max(values))}"
        for one in shown
        if (values := [y for _, y in one.points if y is not None])
    )
    return _figure(title, f"Lines over time in {unit}. {about}.", height, parts, [one.name for one in shown])


def bar_chart(title: str, bars: Sequence[tuple[str, float]], *, unit: str, percent: bool = False) -> str:
    """Horizontal bars, from the top down."""
    if not bars:
        return f"<p>{escape(title)}: nothing to show.</p>"
    most = 1.0 if percent else max(max(value for _, value in bars), 1e-9)
    step, margin = 26, 220
    parts = []
    for i, (name, value) in enumerate(bars):
        y, width = TOP + i * step, max(1.0, value / most * (WIDTH - margin - 90))
        text = f"{value:.1%}" if percent else short(value)
        parts.append(f'<text class="name" x="{margin - 8}" y="{y + 16}" text-anchor="end">{escape(cut(name, 30))}</text>')
        parts.append(f'<rect x="{margin}" y="{y + 4}" width="{width:.1f}" height="16" rx="2" fill="{COLOURS[0]}"/>')
        parts.append(f'<text x="{margin + width + 6:.1f}" y="{y + 16}">{escape(text)}</text>')
    about = ", ".join(f"{name} {value:.1%}" if percent else f"{name} {short(value)}" for name, value in bars[:20])
    return _figure(title, f"Bars in {unit}. {about}.", TOP * 2 + step * len(bars), parts, [])


def range_chart(title: str, rows: Sequence[tuple[str, Sequence[float]]], *, names: Sequence[str], text: Sequence[str] = ()) -> str:
    """Per row a span from its first to its last value, with a mark at each, on a logarithmic axis of milliseconds.

    Args: rows: (name, ascending values); names: of the values; text: per row, what stands behind it.
    """
    rows = [(name, [max(value, 0.001) for value in values]) for name, values in rows if values]
    if not rows:
        return f"<p>{escape(title)}: nothing to show.</p>"
    low = 10.0 ** math.floor(math.log10(min(values[0] for _, values in rows)))
    high = 10.0 ** math.ceil(math.log10(max(max(values) for _, values in rows) * 1.0001))
    high = max(high, low * 10)
    margin, step = 220, 26
    height = TOP + step * len(rows) + BOTTOM

    def place(value: float) -> float:
        return margin + (math.log10(value) - math.log10(low)) / (math.log10(high) - math.log10(low)) * (WIDTH - margin - 30)

    parts = []
    mark = low
    while mark <= high * 1.0001:
        x = place(mark)
        parts.append(f'<line class="grid" x1="{x:.1f}" x2="{x:.1f}" y1="{TOP}" y2="{height - BOTTOM}"/>')
        parts.append(f'<text x="{x:.1f}" y="{height - 10}" text-anchor="middle">{escape(milliseconds(mark))}</text>')
        mark *= 10
    for i, (name, values) in enumerate(rows):
        y = TOP + i * step + 13
        parts.append(f'<text class="name" x="{margin - 8}" y="{y + 4}" text-anchor="end">{escape(cut(name, 30))}</text>')
        parts.append(
            f'<line x1="{place(values[0]):.1f}" x2="{place(values[-1]):.1f}" y1="{y}" y2="{y}" '
            f'stroke="{COLOURS[0]}" stroke-width="3" opacity=".45"/>'
        )
        for j, value in enumerate(values):
            parts.append(f'<circle cx="{place(value):.1f}" cy="{y}" r="{5.5 - j * 0.7:.1f}" fill="{COLOURS[j % SERIES_MAX]}"/>')
    about = "; ".join(
        f"{name}: " + ", ".join(f"{which} {milliseconds(value)}" for which, value in zip(names, values, strict=False))
        for name, values in rows[:20]
    )
    return _figure(title, f"Spans on a logarithmic axis. {about}.", height, parts, list(names), dots=True)


# --- parts --------------------------------------------------------------------------------------------------------------


def _figure(title: str, about: str, height: float, parts: Sequence[str], key: Sequence[str], *, dots: bool = False) -> str:
    svg = (
        f'<svg viewBox="0 0 {WIDTH} {height:.0f}" role="img" aria-label="{escape(title)}">'
        f"<title>{escape(title)}</title><desc>{escape(about)}</desc>{''.join(parts)}</svg>"
    )
    entries = "".join(f"<li>{_swatch(i, dots)}{escape(cut(name, 60))}</li>" for i, name in enumerate(key))
    legend = f'<ul class="key">{entries}</ul>' if key else ""
    return f"<figure>{svg}{legend}<figcaption>{escape(title)}</figcaption></figure>"


def _swatch(i: int, dots: bool) -> str:
    inner = (
        f'<circle cx="17" cy="5" r="4.5" fill="{COLOURS[i % SERIES_MAX]}"/>' if dots else f'<path d="M0 5H34" fill="none" {_stroke(i)}/>'
    )
    return f'<svg viewBox="0 0 34 10" aria-hidden="true">{inner}</svg>'


def _stroke(i: int) -> str:
    dashes = f' stroke-dasharray="{DASHES[i % SERIES_MAX]}"' if DASHES[i % SERIES_MAX] else ""
    return f'stroke="{COLOURS[i % SERIES_MAX]}" stroke-width="2" stroke-linejoin="round"{dashes}'


def _path(points: Sequence[tuple[float, float | None]], place: object, steps: bool) -> str:
    """An SVG path; a gap where there is no value."""
    parts: list[str] = []
    down = False
    for x, y in points:
        if y is None:
            down = False
            continue
        at_x, at_y = place(x, y)  # type: ignore[operator]
        parts.append((f"H{at_x:.1f}V{at_y:.1f}" if steps else f"L{at_x:.1f} {at_y:.1f}") if down else f"M{at_x:.1f} {at_y:.1f}")
        down = True
    return "".join(parts)


def nice_marks(low: float, high: float, count: int = 5) -> list[float]:
    """Round numbers from `low` to at least `high`."""
    step = 10.0 ** math.floor(math.log10(max(high - low, 1e-9) / count))
    step = next(step * k for k in (1, 2, 2.5, 5, 10, 20) if step * k * count >= (high - low) * 0.999)
    return [low + step * i for i in range(math.ceil((high - low) / step - 1e-9) + 1)]


def short(value: float) -> str:
    """A number in few characters: 12, 1.5 k, 3 M."""
    for size, unit in ((1e9, " G"), (1e6, " M"), (1e3, " k")):
        if abs(value) >= size:
            return f"{value / size:.3g}{unit}"
    return f"{value:.3g}"


def milliseconds(value: float) -> str:
    """A duration given in milliseconds, for people."""
    if value < 1:
        return f"{value * 1000:.3g} us"
    if value < 1000:
        return f"{value:.3g} ms"
    seconds = value / 1000
    if seconds < 120:
        return f"{seconds:.3g} s"
    return f"{seconds / 60:.3g} min" if seconds < 7200 else f"{seconds / 3600:.3g} h"


def clock_text(start_us: int, seconds: float, span_s: float) -> str:
    """A moment on a time axis of this length."""
    from datetime import UTC, datetime

    if not start_us:
        return f"{seconds:.3g} s"
    moment = datetime.fromtimestamp(start_us / 1e6 + seconds, UTC)
    if span_s > 2 * 86_400:
        return moment.strftime("%Y-%m-%d")
    if span_s < 10:
        return moment.strftime("%H:%M:%S.%f")[:-4]
    return moment.strftime("%H:%M:%S")


def cut(text: str, length: int) -> str:
    """The text, with its middle left out when it is longer."""
    return text if len(text) <= length else f"{text[: length // 2 - 1]}…{text[-(length - length // 2) :]}"
