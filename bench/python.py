"""python.py - time of the Python module: its import, a world of threads, a forked world, and load().

bench/python.py [ROUNDS]: run it with the Python that has the module, or with PYTHONPATH=python. Prints the least
time, the median and the limit of each, and exits with status 1 if a least time is above its limit. The import is in CPU
time, with compiled files.
"""
import os
import statistics
import subprocess
import sys
import tempfile
import time

import tessera

IMPORT = """
import time, numpy
start = time.process_time()
import tessera
[getattr(tessera, name) for name in tessera.__all__]  # all submodules, which `import tessera` leaves for later
tessera._library.load_library()
print(time.process_time() - start)
"""
compiled = tempfile.TemporaryDirectory()
environment = {**os.environ, "PYTHONPYCACHEPREFIX": compiled.name, "PYTHONDONTWRITEBYTECODE": ""}


def measure(function):
    start = time.perf_counter()
    function()
    return time.perf_counter() - start


def load(ranks):
    return lambda: tessera.load(tessera.get_demo(), ranks=ranks).close()


def spawn(ranks, backend):
    return lambda: tessera.spawn(int, ranks=ranks, backend=backend)


CASES = [  # name, limit in ms, seconds of one round
    ("import besides NumPy", 30, lambda: float(subprocess.check_output([sys.executable, "-c", IMPORT], env=environment))),
    ("world of 4 threads", 5, lambda: measure(spawn(4, "loopback"))),
    ("world of 4 processes, shm", None, lambda: measure(spawn(4, "shm"))),
    ("load() and close(), 1 rank", None, lambda: measure(load(1))),
    ("load() and close(), 4 ranks", 50, lambda: measure(load(4))),
]

rounds = int(sys.argv[1]) if len(sys.argv) > 1 else 20
missed = False
print(f"{'ms':<30}{'least':>8}{'median':>8}{'limit':>8}")
for name, limit, run in CASES:
    run()  # compiles, and reads files
    times = [1000 * run() for _ in range(rounds)]
    missed |= limit is not None and min(times) > limit
    print(f"{name:<30}{min(times):8.2f}{statistics.median(times):8.2f}{limit or '':>8}")
sys.exit(missed)
