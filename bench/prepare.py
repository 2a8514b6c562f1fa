"""prepare.py - what script/bench does before it measures: its plan with time and disk, builds, peers, checkpoints."""
import os, platform, shutil, subprocess, sys, time

import checkpoint
import gpt_oss
import machine
import programs
import report

ROOT, find_output = programs.ROOT, programs.find_output
PYTORCH, LLAMA, BUILD = 6.0e9, 0.6e9, 0.5e9  # bytes on disk: packages, sources and builds


def say(text):
    print("bench: " + text, file=sys.stderr, flush=True)


def describe_run(bench):
    """Returns the first line of a results file: machine, versions and options."""
    a = bench.a
    packages = "import torch, transformers; print('torch', torch.__version__ + ', transformers', transformers.__version__)"
    versions = {"tessera": programs.find_version(a.tessera), "compiler": find_output(["gcc", "--version"], r"^(.*)$")}
    if a.peers:
        versions["llama.cpp"] = find_output([os.path.join(bench.llama, "llama-bench"), "--version"], r"version: (.*)$")
        versions["torch"] = find_output([bench.python, "-c", packages], r"^torch (.*)$")
    return dict(date=time.strftime("%Y-%m-%d"), cpu=bench.cpu, cpus=a.cpus, of=os.cpu_count(),
                nodes=len(bench.nodes), kernel=platform.release(), rounds=a.rounds, cases=a.cases,
                ways={m: bench.split(m) for m in report.MODELS}, notes=a.notes, versions={k: v for k, v in versions.items() if v})


# ---- disk, memory and time ------------------------------------------------------------------------

def list_files(bench, model):
    """Lists (path, bytes) of a model's checkpoint and of its GGUF for llama.cpp; for q8 also of its source in bf16."""
    dtype, cache = model.split("-")[1], bench.a.cache
    size = report.count_stored(model)
    if dtype == "q8":
        yield from list_files(bench, model.replace("q8", "bf16"))
    else:
        yield bench.path(model), size
    if bench.has_llama():
        yield os.path.join(cache, model + ".gguf"), size


def list_missing_programs(bench):
    """Lists (what, path, bytes, seconds) of the programs that this run installs or builds."""
    a, n = bench.a, max(1, os.cpu_count() or 1)
    if a.own_build and not os.path.exists(os.path.join(ROOT, "build/release/tools/tessera")):
        yield "build of Tessera", os.path.join(ROOT, "build"), BUILD, 30 + 300 / n
    if a.peers and not os.path.exists(bench.python):
        yield "PyTorch and Transformers", os.path.join(ROOT, "build"), PYTORCH, 240
    if a.peers and not os.path.exists(os.path.join(a.cache, "llama.cpp/complete")):
        yield "llama.cpp, built from source", a.cache, LLAMA, 60 + 700 / n


def list_missing(bench):
    """Lists (what, path, bytes, seconds) of all that this run sets up: programs, and the checkpoints of a.models."""
    a = bench.a
    yield from list_missing_programs(bench)
    files = {path: size for m in a.models for path, size in list_files(bench, m) if any(bench.list_jobs(m))}
    left = sum(size for path, size in files.items() if not os.path.exists(path))
    if left:
        yield "checkpoints of random weights", a.cache, left, left / 2e8


def choose_models(bench):
    """Leaves out models that do not fit in memory or on the disk, with a note for each."""
    a, memory = bench.a, machine.find_memory()
    kept, taken, fixed = [], 0, {}
    for _, path, size, _ in list_missing_programs(bench):
        device, _ = machine.find_disk(path)
        fixed[device] = fixed.get(device, 0) + size
    device, free = machine.find_disk(a.cache)
    free -= fixed.get(device, 0) + 1e9
    for m in a.models:
        need = 2 * report.count_stored(m) + 2e9  # pages of the file, and the copy of an engine
        files = dict(list_files(bench, m))
        size = sum(size for path, size in files.items() if not os.path.exists(path) and path not in kept)
        if need > memory:
            a.notes.append("%s: needs %.1f GB of memory, of which %.1f GB are available" % (m, need / 1e9, memory / 1e9))
        elif size > free - taken:
            a.notes.append("%s: needs %.1f GB more in %s, where %.1f GB are left for it (--cache DIR takes another disk)" %
                           (m, size / 1e9, a.cache, max(0, free - taken) / 1e9))
        else:
            taken += size
            kept += [m, *files]
    a.models = [m for m in a.models if m in kept]
    where, left = machine.find_disk(os.path.join(ROOT, "build"))
    if where != device and fixed.get(where, 0) > left:
        sys.exit("bench: %s needs %.1f GB, of which %.1f GB are free; free some, or run with --no-peers" %
                 (os.path.join(ROOT, "build"), fixed[where] / 1e9, left / 1e9))
    if not a.models:
        sys.exit("bench: no checkpoint fits:\n" + "\n".join("  " + x for x in a.notes))


def guess_seconds(bench, job):
    """Returns a rough duration of a run: start, weights to read, and what its samples compute."""
    reads, flops = machine.guess_rates(bench.n, bench.cpu)
    torch, parallel = "Transformers" in job.engine or job.engine == "MKL", job.engine.endswith((" TP", "tensor"))
    slow = 1 if job.engine.startswith("tessera") else 4 if parallel else 2 if torch else 1.2
    share = min(1, job.threads / bench.n) if job.threads else 1
    decoded, prefilled = job.work
    seconds = (8 if torch and parallel else 4 if torch else 1) + report.count_stored(job.model) / 2e9
    return seconds + slow / share * (decoded * report.count_bytes(job.model) / reads +
                                     prefilled * report.count_flops(job.model, 512) / 512 / flops / 0.8)


def sum_seconds(bench):
    """Returns the seconds of all rounds, by earlier runs if there are any, else by a guess."""
    rounds, total = bench.a.rounds, 0
    for m in bench.a.models:
        for job in bench.list_jobs(m):
            times = -(-rounds // job.every)
            total += times * (job.seconds or guess_seconds(bench, job))
    return total


def show_plan(bench):
    """Prints what will happen, before anything is installed, built or written."""
    a = bench.a
    missing = list(list_missing(bench))
    say("%d CPU%s: %s; %s; ranks x threads: %s" % (
        bench.n, "s" * (bench.n > 1), bench.cpu, "%d memory node%s" % (max(1, len(bench.nodes)), "s" * (len(bench.nodes) > 1)),
        ", ".join("%s %d x %d" % (m, *bench.split(m)) for m in a.models)))
    for what, path, size, seconds in missing:
        say("sets up: %s: %.1f GB in %s, about %d min" % (what, size / 1e9, path, seconds / 60 + 1))
    setup, runs = sum(x[3] for x in missing), sum_seconds(bench)
    say("measures %d cases in up to %d rounds: about %d min (%s), on an otherwise idle machine" % (
        sum(len(bench.list_jobs(m)) for m in a.models), a.rounds, runs / 60 + 1,
        "as measured before" if bench.known else "a guess; it is corrected after each case"))
    say("in all about %d min, and %.1f GB more on disk. Ctrl-C stops; the same command continues" %
        ((setup + runs) / 60 + 1, sum(x[2] for x in missing) / 1e9))
    for note in a.notes:
        say("not measured: " + note)
    say("not measured: " + " ".join(report.MISSING))


# ---- setting up ---------------------------------------------------------------------------------

def run_quietly(command):
    try:
        p = subprocess.run(command, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, stdin=subprocess.DEVNULL, text=True)
    except OSError as e:
        say(str(e))
        return False
    if p.returncode:
        print(p.stdout[-4000:], file=sys.stderr)
    return p.returncode == 0


def build_tessera():
    build = os.path.join(ROOT, "build/release")
    ok = run_quietly(["script/setup"])
    if not ok and shutil.which("meson") and shutil.which("ninja"):
        say("script/setup failed; the build continues with the installed packages")
        ok = True
    if ok and not os.path.exists(os.path.join(build, "build.ninja")):
        ok = run_quietly(["meson", "setup", *(["--wipe"] if os.path.exists(build) else []), "build/release", "--buildtype=release"])
    if not ok or not run_quietly(["ninja", "-C", build]):
        sys.exit("bench: Tessera cannot be built")


def write_model(bench, model):
    shape, dtype = model.split("-")
    gguf = os.path.join(bench.a.cache, model + ".gguf")
    if shape == "gptoss":
        config = gpt_oss.make_config()
        gpt_oss.write_checkpoint(bench.path(model), config)
        if bench.has_llama():
            gpt_oss.write_gguf(gguf, config)
        return
    stored = "bf16" if dtype == "q8" else dtype  # converted to 8 bits at load time, or by llama-quantize
    config = checkpoint.make_config(stored, **checkpoint.SHAPES[shape])
    checkpoint.write_checkpoint(bench.path(model), config, stored)
    if not bench.has_llama():
        return
    wide = os.path.join(bench.a.cache, "%s-%s.gguf" % (shape, stored))
    checkpoint.write_gguf(wide, config, stored)
    if dtype == "q8" and not os.path.exists(gguf):
        run_quietly([os.path.join(bench.llama, "llama-quantize"), wide, gguf + ".part", "Q8_0"])
        if os.path.exists(gguf + ".part"):
            os.rename(gguf + ".part", gguf)


def remove_parts(cache):
    """Removes what a stopped run left half written."""
    for name in os.listdir(cache):
        path = os.path.join(cache, name)
        if name.endswith(".part"):
            shutil.rmtree(path) if os.path.isdir(path) else os.remove(path)


def set_up(bench):
    """Builds Tessera, installs peers and writes checkpoints. Without Tessera the bench ends; a missing peer or a
    checkpoint that cannot be written is left out, with a note."""
    a = bench.a
    if a.own_build:
        build_tessera()
    if a.peers:
        if subprocess.run([os.path.join(ROOT, "bench/setup"), a.cache], stdin=subprocess.DEVNULL).returncode:
            say("peers that are not installed are left out")
        find_absent(bench)
    remove_parts(a.cache)
    for model in list(a.models):
        if not any(bench.list_jobs(model)):
            continue
        say("checkpoint %s" % model)
        try:
            write_model(bench, model)
        except OSError as e:
            remove_parts(a.cache)
            a.models.remove(model)
            a.notes.append("%s: its checkpoint cannot be written: %s" % (model, e.strerror or e))
            say("not measured: " + a.notes[-1])


def find_absent(bench):
    """Leaves out the engines that are not installed."""
    have = {"llama.cpp": os.path.exists(os.path.join(bench.llama, "llama-bench")),
            "Transformers": find_output([bench.python, "-c", "import transformers, torch; print('ok')"], "(ok)")}
    for engine, there in have.items():
        if not there:
            bench.absent += [engine] + ["MKL"] * (engine == "Transformers")
            bench.a.notes.append("%s: not installed" % engine)
