"""A chart of rates against clients on two logarithmic axes.

in: figures of bench/shared.py. out: text of an SVG file that stands by itself.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from html import escape
from typing import Any

WIDTH, HEIGHT = 860, 520
_LEFT, _RIGHT, _TOP, _BOTTOM = 70, 600, 50, 470
# differ in lightness, too
_COLOURS = ("#0b3c5d", "#d1495b", "#66a182", "#2e4057", "#edae49", "#8d96a3", "#00798c", "#7b2d26")
_TITLE = "Messages taken a second from one queue, against the number of clients"


def chart(figures: Sequence[dict[str, Any]], about: str) -> str:
    """Args: figures: with `line`, `clients`, `rate`; about: conditions, in one line."""
    lines: dict[str, list[tuple[int, float]]] = {}
    for one in figures:
        lines.setdefault(one["line"], []).append((one["clients"], max(1.0, float(one["rate"]))))
    counts = sorted({one["clients"] for one in figures})
    low = math.floor(math.log10(min(rate for points in lines.values() for _, rate in points)))
    high = max(low + 1, math.ceil(math.log10(max(rate for points in lines.values() for _, rate in points))))

    def x(count: int) -> float:
        span = math.log2(counts[-1]) - math.log2(counts[0]) or 1.0
        return _LEFT + (_RIGHT - _LEFT) * (math.log2(count) - math.log2(counts[0])) / span

    def y(rate: float) -> float:
        return _BOTTOM - (_BOTTOM - _TOP) * (math.log10(rate) - low) / (high - low)

    parts = [
        f'<text x="16" y="24" font-size="15" font-weight="600">{_TITLE}</text>',
        f'<text x="16" y="{HEIGHT - 8}">{escape(about)}</text>',
    ]
    for power in range(low, high + 1):
        place = y(10.0**power)
        parts.append(f'<line x1="{_LEFT}" x2="{_RIGHT}" y1="{place:.1f}" y2="{place:.1f}" stroke="#ddd"/>')
        parts.append(f'<text x="{_LEFT - 8}" y="{place + 4:.1f}" text-anchor="end">{10**power:,}</text>')
    parts += [f'<text x="{x(count):.1f}" y="{_BOTTOM + 18}" text-anchor="middle">{count}</text>' for count in counts]
    for number, (name, points) in enumerate(lines.items()):
        colour = _COLOURS[number % len(_COLOURS)]
        dashes = "" if number % 2 == 0 else ' stroke-dasharray="6 3"'
        path = " ".join(f"{x(count):.1f},{y(rate):.1f}" for count, rate in sorted(points))
        parts.append(f'<polyline points="{path}" fill="none" stroke="{colour}" stroke-width="2.5"{dashes}/>')
        parts += [f'<circle cx="{x(count):.1f}" cy="{y(rate):.1f}" r="3" fill="{colour}"/>' for count, rate in points]
        parts.append(f'<text x="{_RIGHT + 16}" y="{_TOP + 12 + 20 * number}" fill="{colour}">{escape(name)}</text>')
    head = f'<svg xmlns="http://www.w3.org/2000/svg" width="{WIDTH}" height="{HEIGHT}" viewBox="0 0 {WIDTH} {HEIGHT}" role="img"'
    ground = f'<rect width="{WIDTH}" height="{HEIGHT}" fill="#fff"/>'
    return (
        f'{head} font-family="system-ui, sans-serif" font-size="12">\n<title>{_TITLE}</title>\n{ground}\n' + "\n".join(parts) + "\n</svg>\n"
    )
