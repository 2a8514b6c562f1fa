#!/usr/bin/env python3
"""offload.py - steps of training with values in files, against compute and disk, in one run.

	bench/offload.py TESSERA MODEL DATA [--folder DIR] [--steps N] [--seconds S] [--cases CASE,...]

MODEL is a checkpoint in f32 with an untied head, DATA its ids (.bin, .u16). Each case trains N steps (default 4) of one
sequence of 128 ids on one rank, with files in DIR (default: TMPDIR or /tmp). Compute is the step in memory. Before and
after each case, fio moves a file in DIR for S seconds (default 3) as in fio.py, with the case's share of reads. Disk is
the bytes of a step at the mean of these two rates. The bound of a step is the greater of compute and disk without
clipping, else their sum.

With N parameters a step moves 16 N bytes of AdamW's state. With weights and gradients in files, too, forward and
backward read 8 N and write 4 N, the update reads 8 N and writes 4 N more, and with clipping the norm reads 4 N. The
output is a table with the median of the steps after the first. Without fio the script is skipped, with status 77.
"""
import argparse, json, os, statistics, struct, subprocess, tempfile

import fio

CASES = {  # files, --clip; bytes read and written, for each parameter
    "optimizer, clip 0": (["optimizer"], "0", 8, 8),
    "optimizer, clip 1": (["optimizer"], "1", 8, 8),
    "all, clip 0": (["optimizer", "weights"], "0", 24, 16),
    "all, clip 1": (["optimizer", "weights"], "1", 28, 16),
}


def count_parameters(model):
    with open(os.path.join(model, "model.safetensors"), "rb") as f:
        header = json.loads(f.read(struct.unpack("<Q", f.read(8))[0]))
    return sum((t["data_offsets"][1] - t["data_offsets"][0]) // 4 for name, t in header.items() if name != "__metadata__")


def measure_disk(folder, seconds, reads):
    """Returns the bytes of a second, of reads and writes together."""
    return fio.measure(os.path.join(folder, "fio"), 2048, "rw", f"--rwmixread={reads}", f"--runtime={seconds}", "--time_based")


def measure_step(args, folder, options):
    """Returns the median of the seconds of steps after the first."""
    log = os.path.join(folder, "log")
    subprocess.run([args.tessera, "train", args.model, "--data", args.data, "--sequence", "128", "--batch", "1", "--steps",
                    str(args.steps), "--log", log, *options], check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    with open(log) as f:
        seconds = [json.loads(line)["seconds"] for line in f if '"seconds"' in line]
    os.remove(log)
    return statistics.median(seconds[1:args.steps])


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    names = [name.replace(", clip ", "/") for name in CASES]
    for name in ("tessera", "model", "data"):
        parser.add_argument(name, metavar=name.upper())
    parser.add_argument("--folder", metavar="DIR", default=os.environ.get("TMPDIR", "/tmp"))
    parser.add_argument("--steps", metavar="N", type=int, default=4)
    parser.add_argument("--seconds", metavar="S", type=int, default=3)
    parser.add_argument("--cases", metavar="CASE,...", default=",".join(names),
                        help="values in files, and --clip: of %(default)s (default: all)")
    args = parser.parse_args()
    if unknown := set(args.cases.split(",")) - set(names):
        parser.error("--cases: no case is named %s; use %s" % (", ".join(sorted(unknown)), ", ".join(names)))
    fio.require()
    parameters = count_parameters(args.model)
    with tempfile.TemporaryDirectory(dir=args.folder) as folder:
        compute = measure_step(args, folder, ["--clip", "0"])
        print("Memory of fio:", fio.choose_memory())
        print("| values in files | step, s | compute, s | disk, s | bound, s | step : bound |\n|---|--:|--:|--:|--:|--:|", flush=True)
        for name in (case.replace("/", ", clip ") for case in args.cases.split(",")):
            files, clip, read, written = CASES[name]
            reads = round(100 * read / (read + written))
            before = measure_disk(folder, args.seconds, reads)
            step = measure_step(args, folder, ["--clip", clip, *(o for f in files for o in ("--offload-" + f, folder))])
            rate = (before + measure_disk(folder, args.seconds, reads)) / 2
            disk = (read + written) * parameters / rate
            bound = max(compute, disk) if clip == "0" else compute + disk
            print(f"| {name} | {step:.2f} | {compute:.2f} | {disk:.2f} | {bound:.2f} | {step / bound:.2f} |", flush=True)


if __name__ == "__main__":
    main()
