"""Charts as SVG files that stand by themselves, for Markdown pages: bars in groups, and lines over time.

in: figures. out: text of a file. No dependency; colours that differ in lightness and lines that differ in dashes, as in
flintmq.pipeline.jobs.report. A white ground, so that they can be read on dark pages, too.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from html import escape

from flintmq.pipeline.jobs.report import COLOURS, DASHES

WIDTH = 860


def _file(title: str, about: str, height: int, parts: Sequence[str]) -> str:
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{WIDTH}" height="{height}" viewBox="0 0 {WIDTH} {height}" role="img"'
        f' font-family="system-ui, sans-serif" font-size="12">\n<title>{escape(title)}</title>\n<desc>{escape(about)}</desc>\n'
        f'<rect width="{WIDTH}" height="{height}" fill="#fff"/>\n'
        f'<text x="16" y="24" font-size="15" font-weight="600" fill="#1b1f24">{escape(title)}</text>\n' + "\n".join(parts) + "\n</svg>\n"
    )


def _key(names: Sequence[str], y: int, lines: bool) -> list[str]:
    parts, x = [], 72
    for i, name in enumerate(names):
        if lines:
            parts.append(
                f'<line x1="{x}" x2="{x + 28}" y1="{y}" y2="{y}" stroke="{COLOURS[i]}" stroke-width="2.5" stroke-dasharray="{DASHES[i]}"/>'
            )
        else:
            parts.append(f'<rect x="{x + 8}" y="{y - 6}" width="14" height="12" fill="{COLOURS[i]}"/>')
        parts.append(f'<text x="{x + 34}" y="{y + 4}" fill="#1b1f24">{escape(name)}</text>')
        x += 60 + 8 * len(name)
    return parts


def _text(value: float) -> str:
    if value == 0:
        return "0"
    if value < 0.01:
        return f"{value:.2g}"
    return f"{value:.3f}".rstrip("0").rstrip(".") if value < 10 else f"{value:,.0f}"


def bars(title: str, rows: Sequence[str], names: Sequence[str], values: Sequence[Sequence[float | None]], *, top: float, unit: str) -> str:
    """Groups of horizontal bars: a group a row, a bar a name. values[row][name]; None: not measured. top: end of the axis."""
    left, step = 230, 15
    parts, y = [], 66
    for mark in range(5):
        x = left + (WIDTH - left - 90) * mark / 4
        parts.append(f'<line x1="{x:.1f}" x2="{x:.1f}" y1="56" y2="{66 + len(rows) * (step * len(names) + 14) - 8}" stroke="#d1d9e0"/>')
        parts.append(f'<text x="{x:.1f}" y="52" text-anchor="middle" fill="#59636e">{_text(top * mark / 4)}</text>')
    for row, line in zip(rows, values, strict=True):
        parts.append(f'<text x="{left - 10}" y="{y + step * len(names) / 2 + 4:.0f}" text-anchor="end" fill="#1b1f24">{escape(row)}</text>')
        for i, value in enumerate(line):
            if value is not None:
                width = max(1.0, min(1.0, value / top) * (WIDTH - left - 90))
                parts.append(f'<rect x="{left}" y="{y}" width="{width:.1f}" height="{step - 3}" fill="{COLOURS[i]}"/>')
                parts.append(f'<text x="{left + width + 5:.1f}" y="{y + 10}" fill="#59636e" font-size="11">{_text(value)}</text>')
            y += step
        y += 14
    parts += _key(names, y + 6, lines=False)
    about = "; ".join(
        f"{row}: " + ", ".join(f"{name} {_text(value)}" for name, value in zip(names, line, strict=True) if value is not None)
        for row, line in zip(rows, values, strict=True)
    )
    return _file(title, f"Bars, {unit}. {about}.", y + 26, parts)


def lines(
    title: str,
    names: Sequence[str],
    series: Sequence[Sequence[tuple[float, float]]],
    *,
    unit: str,
    x_unit: str = "s",
    log: bool = False,
    mark: tuple[float, str] | None = None,
) -> str:
    """Lines over time. series[name]: (x, y), x ascending. log: the y axis by powers of ten. mark: a moment (x, text)."""
    height, left, right, top, bottom = 330, 72, 20, 48, 66
    xs = [x for one in series for x, _ in one]
    ys = [y for one in series for _, y in one if y > 0]
    x_low, x_high = min(xs), max(xs)
    plot_width, plot_height = WIDTH - left - right, height - top - bottom
    if log:
        low, high = math.floor(math.log10(min(ys))), math.ceil(math.log10(max(ys)))
        high = max(high, low + 1)
        marks = [10.0**power for power in range(low, high + 1)]
    else:
        high_value = max(ys)
        scale = 10 ** math.floor(math.log10(high_value))
        step = next(scale * part for part in (0.2, 0.25, 0.5, 1, 2) if high_value / (scale * part) <= 5)
        marks = [step * i for i in range(math.ceil(high_value / step) + 1)]
        low, high = 0, 1

    def place(x: float, y: float) -> tuple[float, float]:
        if log:
            part = (math.log10(max(y, 10.0**low)) - low) / (high - low)
        else:
            part = y / marks[-1]
        return left + (x - x_low) / (x_high - x_low) * plot_width, top + (1 - part) * plot_height

    parts = []
    for value in marks:
        _, y = place(x_low, value)
        parts.append(f'<line x1="{left}" x2="{WIDTH - right}" y1="{y:.1f}" y2="{y:.1f}" stroke="#d1d9e0"/>')
        parts.append(f'<text x="{left - 8}" y="{y + 4:.1f}" text-anchor="end" fill="#59636e">{_text(value)}</text>')
    for i in range(6):
        x = x_low + (x_high - x_low) * i / 5
        at, _ = place(x, marks[0] or 1)
        parts.append(f'<text x="{at:.1f}" y="{height - bottom + 18}" text-anchor="middle" fill="#59636e">{x:.0f} {x_unit}</text>')
    parts.append(f'<text x="{left - 8}" y="{top - 8}" text-anchor="end" fill="#59636e">{escape(unit)}</text>')
    if mark:
        at, _ = place(mark[0], marks[-1])
        parts.append(f'<line x1="{at:.1f}" x2="{at:.1f}" y1="{top}" y2="{height - bottom}" stroke="#59636e" stroke-dasharray="2 3"/>')
        parts.append(f'<text x="{at + 6:.1f}" y="{top + 12}" fill="#59636e">{escape(mark[1])}</text>')
    for i, one in enumerate(series):
        path = " ".join(f"{'M' if not at else 'L'}{x:.1f} {y:.1f}" for at, (x, y) in enumerate(place(*point) for point in one))
        parts.append(f'<path d="{path}" fill="none" stroke="{COLOURS[i]}" stroke-width="2" stroke-dasharray="{DASHES[i]}"/>')
    parts += _key(names, height - 18, lines=True)
    about = "; ".join(
        f"{name}: from {_text(min(y for _, y in one))} to {_text(max(y for _, y in one))}" for name, one in zip(names, series, strict=True)
    )
    return _file(title, f"Lines over time in {unit}. {about}.", height, parts)
