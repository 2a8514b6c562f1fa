#!/usr/bin/env python3
"""disk.py - files of offloaded values against fio, in one run: MB/s, case by case.

	bench/disk.py DISK [--folder DIR] [--mib N] [--rounds N] [--engine uring|threads]

DISK is build/release/bench/disk. It and fio move a file of N MiB (default 1024) in DIR (default: TMPDIR or /tmp) in
turn, past the page cache, in blocks of 4 MiB of which 8 are under way (fio.py). Each writes its file once before the
measurement. Cases: `read`, `write`: all bytes in order; `update`: what AdamW does, reads and writes of 12
bytes an element, and in fio the same share of both (rw). The output is the median of the rounds, with minimum and
maximum, and the median of the ratios of a round. Without fio the script is skipped, with status 77.
"""
import argparse, os, statistics, subprocess, sys, tempfile

import fio

FIO = {"read": "read", "write": "write", "update": "rw"}


class Disk:
    """Our file, which stays open."""

    def __init__(self, program, folder, mib, engine):
        self.mib = mib
        self.process = subprocess.Popen([program, folder, str(mib), engine], stdin=subprocess.PIPE, stdout=subprocess.PIPE,
                                        text=True)
        self.run("write")

    def run(self, case):
        print(case, file=self.process.stdin, flush=True)
        answer = self.process.stdout.readline()
        if not answer or self.process.poll():
            sys.exit("disk.py: DISK has failed")
        moved = self.mib // 12 * 12 * 2 if case == "update" else self.mib
        return moved * 2**20 / float(answer) / 1e6


def format_cell(values):
    return f"{statistics.median(values):.0f} ({min(values):.0f} - {max(values):.0f})"


def main():
    parser = argparse.ArgumentParser(usage=__doc__)
    parser.add_argument("disk")
    parser.add_argument("--folder", default=os.environ.get("TMPDIR", "/tmp"))
    parser.add_argument("--mib", type=int, default=1024)
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--engine", default="uring", choices=["uring", "threads"])
    args = parser.parse_args()
    fio.require()
    speed = {case: {"ours": [], "fio": []} for case in FIO}
    with tempfile.TemporaryDirectory(dir=args.folder) as folder:
        path = os.path.join(folder, "fio")
        fio.measure(path, args.mib, "write")
        disk = Disk(args.disk, folder, args.mib, args.engine)
        for i in range(args.rounds):
            order = ("ours", "fio") if i % 2 else ("fio", "ours")
            for case, by in speed.items():
                for program in order:
                    by[program].append(disk.run(case) if program == "ours" else fio.measure(path, args.mib, FIO[case]) / 1e6)
        disk.process.stdin.close()
        disk.process.wait()
    print("| case | tessera, MB/s | fio, MB/s | tessera : fio |\n|---|--:|--:|--:|")
    for case, by in speed.items():
        ratio = statistics.median(a / b for a, b in zip(by["ours"], by["fio"]))
        print(f"| {case} | {format_cell(by['ours'])} | {format_cell(by['fio'])} | {ratio:.2f} |")


if __name__ == "__main__":
    main()
