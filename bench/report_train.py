"""report_train.py - the tables of bench/train from its results, a file of JSON lines."""
import json, os, re, statistics

import plot
import programs
import report

TITLES = {"160m": "160M", "400m": "400M"}
HEAD = ["case", "Tessera, tokens/s", "MB sent", "MB of memory", "PyTorch, tokens/s", "by", "MB sent", "MB of memory", "ratio"]


def read_lines(path):
    """Returns the records; drops a last line that was cut off when a run was killed."""
    if not os.path.exists(path):
        return []
    programs.cut_part(path)
    try:
        with open(path) as f:
            return [json.loads(line) for line in f]
    except ValueError as e:
        raise SystemExit("train: %s: these are not results of bench/train: %s" % (path, e))


class Cell:
    """All runs of an engine in a case."""

    def __init__(self, lines):
        self.rates = [r["batch"] * r["sequence"] / r["seconds"] for r in lines]
        self.rate = statistics.median(self.rates)
        self.sent, self.kib = statistics.median(r["sent"] for r in lines), max(r["kib"] for r in lines)

    def show(self):
        return plot.show_spread(self.rates)

    def list_bytes(self):
        return ["%.4g" % (self.sent / 1e6), "%.0f" % (self.kib * 1024 / 1e6)]


def find_cells(lines):
    """Returns {(model, math, case): {engine: Cell}}, in the order of the results."""
    runs = {}
    for r in lines:
        cell = runs.setdefault((r["model"], r["math"], r["case"]), {})
        if "seconds" in r:
            cell.setdefault(r["engine"], []).append(r)
    return {key: {engine: Cell(of) for engine, of in cell.items()} for key, cell in runs.items()}


def find_peer(cell):
    """Returns (engine, its Cell) of the faster PyTorch, or None."""
    peers = [(c.rate, engine) for engine, c in cell.items() if engine != "tessera"]
    return (max(peers)[1], cell[max(peers)[1]]) if peers else None


def list_row(case, cell):
    ours, peer = cell.get("tessera"), find_peer(cell)
    row = [case] + ([ours.show(), *ours.list_bytes()] if ours else ["-"] * 3)
    row += [peer[1].show(), "compiled" if "compiled" in peer[0] else "eager", *peer[1].list_bytes()] if peer else ["-"] * 4
    return row + ["%.2f" % (ours.rate / peer[1].rate) if ours and peer else "-"]


def list_notes(lines):
    """Lists the machine, date and versions of the results, and the failed runs."""
    versions = list(dict.fromkeys(r["version"] for r in lines if "version" in r))
    rounds = report.show_rounds(max(r["round"] for r in lines) + 1, " of up to %d steps" % max(r["steps"] for r in lines))
    yield "%s; %s; %s. %s." % (lines[-1]["cpu"], lines[-1]["date"], "; ".join(versions), rounds)
    failed = [r for r in lines if "failed" in r and r["round"] == 0]
    if failed:
        yield ""
    for r in failed:
        yield "- %s, %s, %s, %s failed: %s" % (r["model"], r["case"], r["math"], r["engine"], re.sub(r"\S*/", "", r["failed"]))


def write_tables(lines):
    """Returns the tables as Markdown, one for each model and math."""
    if not lines:
        return "train: there are no results"
    cells, out = find_cells(lines), []
    for model, math in dict.fromkeys((model, math) for model, math, _ in cells):
        out += ["%s, %s:" % (TITLES.get(model, model), math), "", "| %s |" % " | ".join(HEAD), "|---|--:|--:|--:|--:|---|--:|--:|--:|"]
        out += ["| %s |" % " | ".join(list_row(case, cell)) for (m, x, case), cell in cells.items() if (m, x) == (model, math)]
        out.append("")
    return "\n".join(out + list(list_notes(lines)))


def list_summary(lines):
    """Lists the rows of README.md."""
    for (model, math, case), cell in find_cells(lines).items():
        ours, peer = cell.get("tessera"), find_peer(cell)
        if ours and peer and case != "interleaved":
            rates = [plot.show_number(ours.rate), plot.show_number(peer[1].rate)]
            rates[peer[1].rate > ours.rate] = "**%s**" % rates[peer[1].rate > ours.rate]
            yield "| CPU: train %s %s, %s | %s | %s | PyTorch%s | %.2f |" % (
                TITLES.get(model, model), math, case, *rates, ", compiled" if "compiled" in peer[0] else "", ours.rate / peer[1].rate)


def insert_tables(lines, root):
    """Writes the tables into docs/benchmarks.md, and rows of the model with the most cases into README.md."""
    report.insert_between(os.path.join(root, "docs/benchmarks.md"), write_tables(lines), "train")
    path, models = os.path.join(root, "README.md"), [model for model, _, _ in find_cells(lines)]
    with open(path) as f:
        text = f.read()
    rows = "".join(row + "\n" for row in list_summary([r for r in lines if r["model"] == max(models, key=models.count)]))
    text = re.sub(r"^\| CPU: train .*\n", "", text, flags=re.M)
    with open(path, "w") as f:
        f.write(re.sub(r"^\| GPU: ", lambda m: rows + m[0], text, count=1, flags=re.M))
