"""fio.py - the speed of a disk by fio: past the page cache, by io_uring, blocks of 4 MiB of which 8 are under way.

Its memory is huge pages, as that of Tessera's files, if enough of them are reserved: sysctl vm.nr_hugepages=20.
"""
import json, shutil, subprocess, sys


def require():
    if not shutil.which("fio"):
        print("skipped: no fio (on Debian: apt-get install fio)", file=sys.stderr)
        sys.exit(77)


def choose_memory():
    """Returns fio's name of huge pages, if enough for its blocks are free, or of memory with usual pages."""
    with open("/proc/meminfo") as f:
        values = {line.split(":")[0]: int(line.split()[1]) for line in f}
    return "mmaphuge" if values["HugePages_Free"] * values["Hugepagesize"] >= 40 << 10 else "mmap"


def measure(path, mib, way, *options):
    """Returns the bytes of a second, of reads and writes together. way: fio's read, write or rw."""
    output = subprocess.run(["fio", "--name=bench", f"--filename={path}", f"--size={mib}M", "--bs=4M", "--iodepth=8",
                             "--ioengine=io_uring", "--direct=1", "--overwrite=1", f"--rw={way}", "--mem=" + choose_memory(),
                             *options, "--output-format=json"], check=True, stdout=subprocess.PIPE).stdout
    job = json.loads(output)["jobs"][0]
    return sum(job[k]["io_bytes"] for k in ("read", "write")) * 1e3 / max(job[k]["runtime"] for k in ("read", "write"))
