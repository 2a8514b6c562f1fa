"""The times of an import, a world and load(), and what an import leaves for later."""
import subprocess
import sys

from conftest import SOURCE


def test_times():
    done = subprocess.run([sys.executable, SOURCE / "bench/python.py", "8"], capture_output=True, text=True)
    assert done.returncode == 0 and done.stdout.count("\n") == 6, done.stdout + done.stderr


def test_an_import_loads_nothing_else():
    """The command is started without NumPy and the library."""
    code = "import sys, tessera; print([name for name in ('numpy', 'ctypes') if name in sys.modules])"
    assert subprocess.check_output([sys.executable, "-c", code], text=True) == "[]\n"
