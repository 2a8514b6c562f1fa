"""plot.py - bars and lines as SVG, for light and dark pages. Standard library only."""
import html, math

STYLE = """<style>
text { font: 13px system-ui, sans-serif; fill: #1f2328 } .title { font-weight: 600 } .faint { fill: #59636e }
.page { fill: #ffffff } .grid { stroke: #d1d9e0; fill: none } .limit { stroke: #cf222e; stroke-dasharray: 5 4; fill: none }
.limit-name { fill: #cf222e } .line { fill: none; stroke-width: 2.5 } .right { text-anchor: end }
.value { paint-order: stroke; stroke: #ffffff; stroke-width: 4px } .middle { text-anchor: middle }
%s
@media (prefers-color-scheme: dark) {
text { fill: #f0f6fc } .value { stroke: #0d1117 } .faint { fill: #9198a1 } .page { fill: #0d1117 } .grid { stroke: #3d444d }
.limit { stroke: #ff7b72 } .limit-name { fill: #ff7b72 }
%s
}
</style>"""
KINDS = {"ours": ("#0550ae", "#58a6ff"), "ours2": ("#54aeff", "#1f6feb"), "llama": ("#bc4c00", "#f0883e"),
         "torch": ("#1a7f37", "#3fb950"), "parallel": ("#8250df", "#bc8cff")}


def show_number(x):
    """Formats three digits, or all digits before the point."""
    return "%.*f" % (0 if x >= 100 else 1 if x >= 10 else 2 if x >= 1 else 3, x)


def find_kind(engine):
    for words, kind in ((("TP", "tensor"), "parallel"), (("llama",), "llama"), (("Transformers",), "torch"),
                        (("Tessera, threads",), "ours2")):
        if any(word in engine for word in words):
            return kind
    return "ours"


def find_step(most):
    """Returns the distance of grid lines: about five of them."""
    rough = most / 5
    power = 10 ** math.floor(math.log10(rough))
    return next(k * power for k in (1, 2, 5, 10) if k * power >= rough)


def write_svg(path, width, height, title, parts):
    style = STYLE % tuple("\n".join(".%s { fill: %s } .line.%s { stroke: %s; fill: none }" % (k, c[i], k, c[i])
                                    for k, c in KINDS.items()) for i in (0, 1))
    with open(path, "w") as f:
        f.write('<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 %d %d" width="%d" height="%d" role="img">\n'
                "<title>%s</title>\n%s\n<rect class=\"page\" width=\"100%%\" height=\"100%%\"/>\n%s\n</svg>\n" %
                (width, height, width, height, html.escape(title), style, "\n".join(parts)))


def draw_text(x, y, text, kind=""):
    return '<text x="%.1f" y="%.1f" class="%s">%s</text>' % (x, y, kind, html.escape(text))


def draw_grid_line(x, y, span, label):
    return ['<path class="grid" d="M%.1f %.1fh%d"/>' % (x, y, span), draw_text(x - 8, y + 4, label, "right faint")]


def draw_legend(x, name, kind):
    return ['<rect class="%s" x="%d" y="40" width="12" height="12"/>' % (kind, x), draw_text(x + 17, 51, name)]


def draw_bars(path, title, unit, panels):
    """Draws panels: (title, [(engine, value)], None or (name, value) of the limit), two a row, each with its scale."""
    width, name_width, row, gap = 920, 150, 24, 58
    span = width // 2 - name_width - 75
    heights = [max(len(p[1]) for p in panels[i:i + 2]) * row + gap for i in range(0, len(panels), 2)]
    parts = [draw_text(12, 24, "%s, %s" % (title, unit), "title")]
    for i, (name, bars, limit) in enumerate(panels):
        x = 12 + i % 2 * width // 2 + name_width
        y = 44 + sum(heights[:i // 2])
        scale = span / max([v for _, v in bars] + ([limit[1]] if limit else []))
        parts.append(draw_text(x, y + 14, name, "title"))
        for j, (engine, value) in enumerate(bars):
            at = y + 26 + j * row
            parts.append(draw_text(x - 8, at + 13, engine, "right"))
            parts.append('<rect class="%s" x="%.1f" y="%.1f" width="%.1f" height="17"/>' %
                         (find_kind(engine), x, at, max(1, value * scale)))
        if limit:
            end = y + 26 + len(bars) * row
            parts.append('<path class="limit" d="M%.1f %.1fV%.1f"/>' % (x + limit[1] * scale, y + 18, end))
            parts.append(draw_text(x + limit[1] * scale, y + 14, "%s: %s" % (limit[0], show_number(limit[1])),
                                   "limit-name middle"))
        for j, (_, value) in enumerate(bars):  # above the line of the limit
            parts.append(draw_text(x + value * scale + 5, y + 39 + j * row, show_number(value), "value"))
    write_svg(path, width, 44 + sum(heights), title, parts)


def draw_lines(path, unit, panels):
    """Draws panels side by side: (title, name of the x axis, [(engine, [(x, y)])], None or (name, [(x, y)]) of the limit)."""
    left, top, span, tall = 70, 74, 480 if len(panels) == 1 else 370, 260
    each = span + left + 20
    parts = []
    for i, (name, axis, series, limit) in enumerate(panels):
        at = left + i * each
        every = [p for _, points in series for p in points] + (limit[1] if limit else [])
        low, high = math.log2(min(p[0] for p in every)), math.log2(max(p[0] for p in every))
        most = max(p[1] for p in every) * 1.08
        place = lambda p: (at + (math.log2(p[0]) - low) / (high - low) * span, top + tall - p[1] / most * tall)
        parts.append(draw_text(at, 24, "%s: %s" % (name, unit), "title"))
        for k in range(int(most / find_step(most)) + 1):
            y = place((2 ** low, k * find_step(most)))[1]
            parts += draw_grid_line(at, y, span, "%g" % (k * find_step(most)))
        for x in sorted({p[0] for p in every}):
            parts.append(draw_text(place((x, 0))[0], top + tall + 20, "%g" % x, "middle faint"))
        parts.append(draw_text(at + span / 2, top + tall + 40, axis, "middle"))
        legend = at
        for engine, points in series:
            kind = find_kind(engine)
            parts.append('<path class="line %s" d="M%s"/>' % (kind, "L".join("%.1f %.1f" % place(p) for p in points)))
            parts += ['<circle class="%s" cx="%.1f" cy="%.1f" r="4"/>' % ((kind,) + place(p)) for p in points]
            parts += draw_legend(legend, engine, kind)
            legend += 32 + 7.1 * len(engine)
        if limit:
            points = [place(p) for p in limit[1]]
            parts.append('<path class="limit" d="M%s"/>' % "L".join("%.1f %.1f" % p for p in points))
            falls = limit[1][0][1] > limit[1][-1][1]  # the name is at the highest point
            x, y = points[0 if falls else -1]
            parts.append(draw_text(x, y - 6, limit[0], "limit-name" if falls else "limit-name right"))
    write_svg(path, len(panels) * each + 20, top + tall + 56, panels[0][0], parts)
