"""report.py - the tables and pictures of script/bench from its results, a file of JSON lines."""
import json, math, os, re, statistics

import checkpoint
import gpt_oss
import plot

CONTEXT, PROMPT, LONG, LONG_TOKENS = 16, 512, 8192, 32
TITLES = {"160m": "160M", "1b": "1B", "moe": "160M, 8 experts,", "gptoss": "GPT-OSS of 1B, experts in"}
MODELS = ["160m-f32", "160m-bf16", "1b-f32", "1b-bf16", "1b-q8", "moe-bf16", "gptoss-mxfp4"]
PEERS = ["llama.cpp", "Transformers", "Transformers TP", "llama.cpp -sm tensor"]
TENSOR_PARALLEL = PEERS[2:]
PRODUCTS = ", products of bf16"  # our engine with --math bf16
BF12 = ", weights in 12 bits"  # our engine with --weights bf12
SUMMARY = {"decode 160M bf16", "decode 1B bf16", "decode 1B bf16" + BF12, "decode 1B q8", "prefill 512 1B bf16",
           "prefill 512 1B bf16" + PRODUCTS}  # the cases in README.md

MISSING = [  # what no case measures
    "GPUs: script/gpu-check. Training: bench/train. Collectives: bench/comm. Files of offloaded values: bench/disk.py.",
    "Several hosts, and networks between them.",
    "Long answers, many users at once, latency of single tokens, energy.",
    "The quality of answers: weights are random. Other models, dtypes and engines than those of the tables.",
    "The best options of each engine on this machine: all run with their defaults, except for what a row names.",
]


def title(model):
    shape, dtype = model.split("-")
    return "%s %s" % (TITLES[shape], dtype)


class Results:
    """Medians over rounds by model, engine, bench and x."""

    def __init__(self, lines):
        self.machine, self.commands, self.failed, best, start = None, {}, {}, {}, 0
        self.foreign, self.repeated = [], 0
        for number, line in enumerate(lines):
            try:
                record = json.loads(line)
            except ValueError:
                if number == len(lines) - 1:
                    break  # cut off when the run was killed
                raise SystemExit("bench: line %d of the results is not JSON" % (number + 1))
            if "cpus" in record:
                self.machine, start = record, start + 1
                continue
            if "finished" in record:
                continue
            if "failed" in record:
                self.failed[record["name"]] = record["failed"]
                continue
            self.failed.pop(record["name"], None)
            key = (record["name"], start, record["round"])
            self.repeated += key in best
            if key not in best or best[key]["foreign"] + best[key]["steal"] > record["foreign"] + record["steal"]:
                best[key] = record
        if not self.machine or not best:
            raise SystemExit("bench: there are no results to report")
        self.n, self.values = len(self.machine["cpus"]), {}
        self.ours, self.threads = "Tessera, ranks", "Tessera, threads"
        if self.n == 1:
            self.threads = self.ours
        for record in best.values():
            self.foreign.append(record["foreign"] + record["steal"])
            self.commands.setdefault((record["engine"], re.split("[/ ]", record["name"])[1]), record["command"])
            for p in record["points"]:
                at = (record["model"], self.rename(record["model"], record["engine"]), p["bench"], p["x"])
                self.values.setdefault(at, []).extend((value, record["disturbed"]) for value in p["values"])

    def rename(self, model, engine):
        """Returns the name in tables: ranks and threads of a run with all CPUs depend on the model."""
        most = self.machine["ways"].get(model, [self.n, 1])
        ways = {"tessera 1 x %d" % self.n: self.threads, "tessera %d x %d" % tuple(most): self.ours}
        ours = engine.split(",")[0]
        return ways.get(ours, ours) + engine[len(ours):]

    def get(self, model, engine, bench, x):
        """Returns the median, or None."""
        values = self.values.get((model, engine, bench, x))
        return statistics.median(v for v, _ in values) if values else None

    def show(self, model, engine, bench, x, spread=False, unit=1):
        values = self.values.get((model, engine, bench, x))
        if not values:
            return ""
        numbers = [v * unit for v, _ in values]
        text = plot.show_spread(numbers) if spread else plot.show_number(statistics.median(numbers))
        return text + ("†" if any(d for _, d in values) else "")

    def name_llama(self, threads):
        return "llama.cpp" if threads == self.n else "llama.cpp, threads: %d" % threads

    def list_ranks(self, model):
        """Lists the numbers of ranks of one thread that have results."""
        return [k for k in range(1, self.n + 1) if self.get(model, self.rename(model, "tessera %d x 1" % k), "decode", CONTEXT)]

    def limit(self, model, bench):
        return self.get(model, "machine", bench, self.n)

    def models(self):
        have = {key[0] for key in self.values}
        return [m for m in MODELS if m in have]


def read_results(files):
    lines = []
    try:
        for name in files:
            with open(name) as f:
                lines += [line for line in f if line.strip()]
        return Results(lines)
    except OSError as e:
        raise SystemExit("bench: cannot read results: %s" % e)
    except (KeyError, TypeError) as e:
        raise SystemExit("bench: these are not results of script/bench: %r" % e)


def make_config(model):
    shape, dtype = model.split("-")
    if shape == "gptoss":
        return gpt_oss.make_config()
    return checkpoint.make_config("f32" if dtype == "f32" else "bf16", **checkpoint.SHAPES[shape])


SIZES = {"f32": 4, "bf16": 2, "q8": 1 + 2 / 32}  # q8: 32 values share a scale of 2 bytes


def count_stored(model):
    """Counts the bytes of a checkpoint."""
    config, dtype = make_config(model), model.split("-")[1]
    if dtype == "mxfp4":
        return gpt_oss.count_stored(config)
    return sum(math.prod(shape) for _, shape, _ in checkpoint.list_tensors(config)) * SIZES[dtype]


def count_bytes(model, context=0, batch=1, cached=4):
    """Counts the bytes that a step of decoding reads: weights that one token uses, and keys and values."""
    config, dtype = make_config(model), model.split("-")[1]
    weights = (gpt_oss.count_read(config) if dtype == "mxfp4" else
               sum(used for _, _, used in checkpoint.list_tensors(config)) * SIZES[dtype])
    kv = 2 * config["num_hidden_layers"] * config["num_key_value_heads"] * config["head_dim"] * cached
    return weights + batch * context * kv


def count_flops(model, prompt):
    """Counts the operations of a prompt: the layers for each row, causal attention, the head for one."""
    config = make_config(model)
    if model.endswith("mxfp4"):
        return 2 * prompt * gpt_oss.count_used(config)
    used = [(name, n) for name, shape, n in checkpoint.list_tensors(config) if n and len(shape) > 1]
    layers = sum(n for name, n in used if "layers" in name)
    return (2 * prompt * layers + 2 * sum(n for name, n in used if "layers" not in name) +
            2 * prompt * prompt * config["hidden_size"] * config["num_hidden_layers"])


def share_read(r, model, rate, context=0, cached=4):
    read = r.limit(model, "read")
    return rate * count_bytes(model, context, 1, cached) / read if read and rate else None


def share_gemm(r, model, rate):
    """Returns the share of the rate of MKL's products alone, on these shapes."""
    gemm = r.get(model, "MKL", "gemm", PROMPT)
    return rate / gemm if gemm and rate else None


def list_targets(r):
    """Lists (case, model, our engine, bench, x, peers, target ratio, share, its limit, target share)."""
    for models, ratio, share in (("160m-f32 1b-f32", 1.1, 0.95), ("160m-bf16 1b-bf16", 1.5, 0.92), ("1b-q8", 1.15, 0.85)):
        for m in models.split():
            yield ("decode " + title(m), m, r.ours, "decode", CONTEXT, PEERS[:1], ratio,
                   share_read(r, m, r.get(m, r.ours, "decode", CONTEXT)), "DRAM", share)
            yield ("decode " + title(m) + BF12, m, r.ours + BF12, "decode", CONTEXT, PEERS[:1], ratio, None, "", None)
    for m, ratio in (("160m-f32", 1.15), ("1b-f32", 1.3)):
        yield ("prefill 512 " + title(m), m, r.ours, "prefill", PROMPT, PEERS[1:2], ratio,
               share_gemm(r, m, r.get(m, r.ours, "prefill", PROMPT)), "MKL sgemm", 1.0)
    for m, ratio in (("160m-bf16", 1.5), ("1b-bf16", 1.5)):
        for math in ("", PRODUCTS):
            ours, f32 = r.get(m, r.ours + math, "prefill", PROMPT), r.get(m.replace("bf16", "f32"), r.ours, "prefill", PROMPT)
            yield ("prefill 512 " + title(m) + math, m, r.ours + math, "prefill", PROMPT, PEERS[:1], ratio,
                   ours and f32 and ours / f32, "ours in f32", 0.9)
    for batch in (8, 32):
        for math in ("", PRODUCTS):
            yield ("batch of %d, decode 160M bf16" % batch + math, "160m-bf16", r.ours + math, "batch", batch, PEERS[:1], 1.5,
                   None, "", None)
    m = "160m-bf16"
    for engine, cached, cache in ((r.ours, 4, ""), (r.ours + ", cache in bf16", 2, ", cache in bf16")):
        yield ("decode at context 8192, " + title(m) + cache, m, engine, "decode", LONG, PEERS[:1], 1.2,
               share_read(r, m, r.get(m, engine, "decode", LONG), LONG + LONG_TOKENS // 2, cached), "DRAM", None)
    for m in ("160m-f32", "160m-bf16", "1b-f32", "1b-bf16"):
        yield ("decode %s, tensor parallel" % title(m), m, r.ours, "decode", CONTEXT, TENSOR_PARALLEL, 3, None, "", None)


def judge(have, wanted):
    """Returns [] if the target is met, else the shortfall."""
    return [] if have is None or wanted is None or have >= wanted else ["%.0f%% short" % (100 * (1 - have / wanted))]


def write_targets(r):
    yield "| case | ours | peer | | ratio | target | of the limit | | target | met |"
    yield "|---|--:|---|--:|--:|--:|--:|---|--:|---|"
    for case, model, engine, bench, x, peers, wanted, share, limit, least in list_targets(r):
        ours = r.get(model, engine, bench, x)
        rates = {p: r.get(model, p, bench, x) for p in peers if r.get(model, p, bench, x)}
        if not ours or not rates:
            continue
        peer = max(rates, key=rates.get)
        missed = judge(ours / rates[peer], wanted) + judge(share, least)
        if missed and share is not None and least is not None:
            missed = ["ratio " + m for m in judge(ours / rates[peer], wanted)] + ["limit " + m for m in judge(share, least)]
        yield "| %s | %s | %s | %s | %.2f | %s | %s | %s | %s | %s |" % (
            case, r.show(model, engine, bench, x), peer, r.show(model, peer, bench, x), ours / rates[peer], wanted,
            "" if share is None else "%.2f" % share, "" if share is None else limit,
            "" if share is None or least is None else least, ", ".join(missed) or "yes")
    m = "1b-bf16"
    for engine in (r.ours, r.threads):
        ours, peer = r.get(m, engine, "first token", 1), r.get(m, "llama.cpp", "first token", 1)
        if ours and peer:
            yield "| first token %s, s, %s | %s | llama.cpp | %s | %.2f | at most 1.2 | | | | %s |" % (
                title(m), engine, r.show(m, engine, "first token", 1), r.show(m, "llama.cpp", "first token", 1),
                ours / peer, "yes" if ours <= 1.2 * peer else "%.1f times that" % (ours / peer / 1.2))
    m = "160m-f32"
    one, all_of, peer, peer_one = (r.get(m, e, "prefill", PROMPT) for e in
                                   ("tessera 1 x 1", r.ours, "Transformers TP", "Transformers, threads: 1"))
    if r.n == 2 and one and all_of and peer and peer_one:
        met = judge(all_of / one, 1.85) + judge(all_of / peer, 1)
        yield "| prefill 512 %s, from 1 to 2 ranks | %.2fx | Transformers TP | %.2fx | %.2f | 1.85x, ahead | | | | %s |" % (
            title(m), all_of / one, peer / peer_one, all_of / peer, ", ".join(met) or "yes")


def list_cases(r):
    """Lists (case, model, bench, x, our method) of the table of all engines."""
    for bench, x, name in (("decode", CONTEXT, "decode"), ("prefill", PROMPT, "prefill 512")):
        for m in r.models():
            for how in ("", PRODUCTS if bench == "prefill" else BF12):
                yield "%s %s" % (name, title(m).replace(",", "")) + how, m, bench, x, how
    for batch in (8, 32):
        for math in ("", PRODUCTS):
            yield "batch of %d 160M bf16" % batch + math, "160m-bf16", "batch", batch, math
    yield "decode at 8192 160M bf16", "160m-bf16", "decode", LONG, ""


def write_engines(r):
    engines = list(dict.fromkeys([r.ours, r.threads])) + PEERS
    yield "| tokens/s | %s |" % " | ".join(engines)
    yield "|---|" + "--:|" * len(engines)
    for case, model, bench, x, how in list_cases(r):
        engines_of = [e + how if e not in PEERS else e for e in engines]
        rates = [r.get(model, e, bench, x) or 0 for e in engines_of]
        if not any(rate for rate, e in zip(rates, engines) if e not in PEERS):
            continue
        cells = [r.show(model, e, bench, x, True) for e in engines_of]
        cells = ["**%s**" % c if v == max(rates) else c for c, v in zip(cells, rates)]
        yield "| %s | %s |" % (case, " | ".join(cells))


def write_summary(r, old):
    """Lists the rows of README.md: a few cases against the fastest peer, then the existing rows of training and of GPUs."""
    yield "| tokens/s | Tessera | fastest peer | | ratio |"
    yield "|---|--:|--:|---|--:|"
    for case, model, bench, x, how in list_cases(r):
        ours, rates = r.get(model, r.ours + how, bench, x), [(r.get(model, e, bench, x) or 0, e) for e in PEERS]
        rate, peer = max(rates)
        if case in SUMMARY and ours and not rate:
            yield "| CPU: %s | %s | - | - | - |" % (case, r.show(model, r.ours + how, bench, x))
        elif case in SUMMARY and ours:
            cells = [r.show(model, r.ours + how, bench, x), r.show(model, peer, bench, x)]
            cells[rate > ours] = "**%s**" % cells[rate > ours]
            yield "| CPU: %s | %s | %s | %s | %.2f |" % (case, *cells, peer, ours / rate)
    yield from re.findall(r"^\| (?:CPU: train|GPU:) .*$", old, re.M)


def write_sweep(r, bench, head, engines, model="160m-bf16"):
    xs = sorted({x for m, e, b, x in r.values if m == model and b == bench and e == engines[0] and x != LONG})
    if len(xs) < 2:
        return
    yield "| %s | %s |" % (head, " | ".join(engines))
    yield "|--:|" + "--:|" * len(engines)
    for x in xs:
        yield "| %d | %s |" % (x, " | ".join(r.show(model, e, bench, x, True) for e in engines))
    yield ""


def write_ranks(r, model="160m-bf16"):
    """Lists the rows of the picture of ranks."""
    yield "| ranks, or threads of llama.cpp | decode, ours | llama.cpp | prefill 512, ours | llama.cpp |"
    yield "|--:|--:|--:|--:|--:|"
    for k in r.list_ranks(model):
        yield "| %d | %s |" % (k, " | ".join(r.show(model, e, bench, x, True) for bench, x in (
            ("decode", CONTEXT), ("prefill", PROMPT)) for e in (r.rename(model, "tessera %d x 1" % k), r.name_llama(k))))
    yield ""


def write_load(r, model="1b-bf16"):
    engines = [*dict.fromkeys([r.ours, r.threads]), "llama.cpp", "Transformers"]
    if not r.get(model, r.ours, "first token", 1):
        return
    yield "| %s | %s |" % (title(model), " | ".join(engines))
    yield "|---|" + "--:|" * len(engines)
    for bench, text in (("first token", "first token, s"), ("end", "from it to the end of the process, ms")):
        unit = 1000 if bench == "end" else 1
        yield "| %s | %s |" % (text, " | ".join(r.show(model, e, bench, 1, True, unit) for e in engines))
    yield ""


def write_limits(r):
    yield "| in the same rounds as | DRAM read, GB/s | FMA peak, GFLOP/s | MKL sgemm, GFLOP/s |"
    yield "|---|--:|--:|--:|"
    for m in r.models():
        gemm = not m.endswith("mxfp4") and r.get(m, "MKL", "gemm", PROMPT)
        flops = gemm and gemm * 2 * sum(
            n for name, shape, n in checkpoint.list_tensors(make_config(m)) if "layers" in name and len(shape) > 1) / 1e9
        yield "| %s | %s | %s | %s |" % (title(m).replace(",", ""), r.show(m, "machine", "read", r.n, True, 1e-9),
                                         r.show(m, "machine", "fma", r.n, True, 1e-9),
                                         plot.show_number(flops) if flops else "")


def draw_all(r, folder):
    """Draws the pictures that have results; returns their names."""
    os.makedirs(folder, exist_ok=True)
    pictures, n, m = [], r.n, "160m-bf16"
    engines = list(dict.fromkeys([r.ours, r.threads])) + PEERS
    for bench, x, text in (("decode", CONTEXT, "decode after 16 tokens"), ("prefill", PROMPT, "prefill of 512 tokens")):
        panels = []
        for model in r.models():
            bars = [(e, r.get(model, e, bench, x)) for e in engines if r.get(model, e, bench, x)]
            limit = None
            if bench == "decode" and r.limit(model, "read"):
                limit = ("DRAM", r.limit(model, "read") / count_bytes(model))
            elif bench == "prefill" and r.limit(model, "fma"):
                limit = ("FMA in f32", r.limit(model, "fma") * PROMPT / count_flops(model, PROMPT))
            if len(bars) > 1:
                panels.append((title(model).replace(",", ""), bars, limit))
        if panels:
            plot.draw_bars(os.path.join(folder, bench + ".svg"), text, "tokens/s", panels)
            pictures.append(bench)

    def collect(engine, bench):
        return sorted((k[3], r.get(*k)) for k in r.values if k[:3] == (m, engine, bench) and k[3] != LONG)

    read, fma = r.limit(m, "read"), r.limit(m, "fma")
    panels = []
    for bench, x in (("decode", CONTEXT), ("prefill", PROMPT)):
        ranks = r.list_ranks(m)
        ours = [(k, r.get(m, r.rename(m, "tessera %d x 1" % k), bench, x)) for k in ranks]
        peer = [(k, r.get(m, r.name_llama(k), bench, x)) for k in ranks]
        series = [("ours, over ranks of 1 thread", [p for p in ours if p[1]]),
                  ("llama.cpp, over threads", [p for p in peer if p[1]])]
        top = None
        if read and fma:
            top = read / count_bytes(m) if bench == "decode" else fma * PROMPT / count_flops(m, PROMPT)
        if len(series[0][1]) > 1:
            panels.append(("%s, %s, on %d CPUs" % (bench, title(m), n), "ranks or threads", series,
                           ("limit: DRAM" if bench == "decode" else "limit: FMA in f32", [(1, top), (ranks[-1], top)]) if top else None))
    if panels:
        plot.draw_lines(os.path.join(folder, "ranks.svg"), "tokens/s", panels)
        pictures.append("ranks")
    for bench, name, text, axis in (("batch", "batch", "decode of many sequences", "sequences at once"),
                                    ("prefill", "prompt", "prefill", "tokens of the prompt")):
        series = [(e, collect(e, bench)) for e in ([r.ours, r.threads, "llama.cpp"] if bench == "batch" else [r.ours, "llama.cpp"])]
        series = [(e, points) for e, points in series if len(points) > 1]
        if not series:
            continue
        top = []
        for x, _ in series[0][1] if read and fma else []:
            flops = fma / (count_flops(m, 1)) if bench == "batch" else fma * x / count_flops(m, x)
            reads = x * read / count_bytes(m, CONTEXT, x)
            top.append((x, min(flops, reads)))
        plot.draw_lines(os.path.join(folder, name + ".svg"), "tokens/s",
                        [("%s, %s" % (text, title(m)), axis, series, ("limit: DRAM, then FMA in f32", top) if top else None)])
        pictures.append(name)
    return pictures


def list_ways(r):
    """Lists what the names of our engines mean, and what was not measured."""
    ways = {}
    for m in r.models():
        ways.setdefault("%d x %d" % tuple(r.machine["ways"][m]), []).append(title(m).replace(",", ""))
    yield "Tessera, ranks: ranks x threads over shm: %s. Tessera, threads: 1 x %d." % (
        "; ".join("%s (%s)" % (way, ", ".join(of)) if len(ways) > 1 else way for way, of in ways.items()), r.n)
    notes = r.machine["notes"] + ["%s: %s" % pair for pair in sorted(r.failed.items())]
    if notes:
        yield ""
        yield from ("- " + re.sub(r"(?<!\S)/\S*/", "", note) for note in notes)


def list_numbers(r):
    """Returns all that was measured, for bench.json. Rates are in tokens/s, limits in bytes/s and FLOP/s, times in s."""
    rows = [dict(model=m, engine=e, bench=b, x=x, median=statistics.median(v for v, _ in values), min=min(values)[0],
                 max=max(values)[0], samples=len(values), disturbed=any(d for _, d in values))
            for (m, e, b, x), values in r.values.items()]
    return dict(machine=r.machine, rows=rows, failed=r.failed, not_measured=r.machine["notes"] + MISSING)


def write_readme(r, old=""):
    """Returns the table of README.md, with the existing rows of training and of GPUs."""
    machine = "CPU: %d CPUs of an %s; Tessera with as many ranks." % (r.n, r.machine["cpu"])
    if any(threads > 1 for _, threads in r.machine["ways"].values()):
        machine = "CPU: %d CPUs of an %s." % (r.n, r.machine["cpu"])
    return "\n".join([*write_summary(r, old), "", machine])


def show_rounds(n, what):
    return "Medians of up to %d rounds%s, with minimum and maximum" % (n, what) if n > 1 else "One round" + what


def write_report(r, folder, prefix="", details=True):
    """Returns the generated section. Pictures go to the folder, and the text links to them. Details: the tables of the
    pictures, the limits of the machine, and the commands."""
    machine, pictures = r.machine, draw_all(r, folder)
    show = lambda name: ["![%s](%s%s.svg)" % (name, prefix, name), ""] if name in pictures else []
    out = ["CPUs %s of %d: %s; Linux %s. %s. %s." %
           (",".join(map(str, machine["cpus"])), machine["of"], machine["cpu"], machine["kernel"].split("-")[0], machine["date"],
            "; ".join(dict.fromkeys("%s: %s" % (k, v) for k, v in machine["versions"].items()))), "",
           "%s. Other processes used %.2f CPUs during a run (median), at most %.2f; "
           "runs repeated for that: %d. †: a run that stayed disturbed is among them." %
           (show_rounds(machine["rounds"], ", in tokens/s"), statistics.median(r.foreign), max(r.foreign), r.repeated), "",
           "#### Targets", "", *list_ways(r), "", *write_targets(r), "", "#### All engines", "",
           *write_engines(r), "", *show("decode"), *show("prefill"), "#### Over ranks, batch and prompt", ""]
    for name, bench, head, engines in (("batch", "batch", "sequences at once", [r.ours, r.threads, r.ours + PRODUCTS, "llama.cpp"]),
                                       ("prompt", "prefill", "tokens of the prompt", [r.ours, r.ours + PRODUCTS, "llama.cpp"])):
        out += [*(write_sweep(r, bench, head, engines) if details else []), *show(name)]
    out += [*(write_ranks(r) if details else []), *show("ranks"), "#### Load and exit", "", *write_load(r)]
    if not details:
        return "\n".join(out)
    out += ["#### Limits", "", *write_limits(r), "", "#### Commands", "", "One of each kind, of the first round; paths are shortened.",
            "", "```text"]
    for (engine, bench), command in sorted(r.commands.items()):
        out.append("%-22s %-8s %s" % (engine, bench, re.sub(r"\S*/", "", command)))
    return "\n".join(out + ["```"])


def insert_between(path, text, name="bench"):
    """Replaces the text between the markers."""
    begin, end = "<!-- %s: begin -->" % name, "<!-- %s: end -->" % name
    with open(path) as f:
        old = f.read()
    if begin not in old or end not in old:
        raise SystemExit("bench: %s has no lines %s and %s" % (path, begin, end))
    new = old[:old.index(begin)] + begin + "\n" + text + "\n" + old[old.index(end):]
    with open(path, "w") as f:
        f.write(new)


def insert_report(r, text, root):
    """Writes the text into docs/benchmarks.md, and a few rows into README.md."""
    insert_between(os.path.join(root, "docs/benchmarks.md"), text)
    readme = os.path.join(root, "README.md")
    with open(readme) as f:
        old = f.read()
    insert_between(readme, write_readme(r, old))
