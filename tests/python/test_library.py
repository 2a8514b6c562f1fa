"""The library is found in a wheel, a build tree and an installed prefix, and errors say where it was searched."""
import os
import shutil
import subprocess
import sys

import pytest

from tessera import _library
from conftest import SOURCE

LAYOUTS = {  # the module, and the library that belongs to it
    "wheel": ("site-packages/tessera", "site-packages/tessera/_native/lib"),
    "build tree": ("source/python/tessera", "source/build/debug"),
    "prefix": ("prefix/share/tessera/python/tessera", "prefix/lib"),
    "prefix of Debian": ("prefix/share/tessera/python/tessera", "prefix/lib/x86_64-linux-gnu"),
}


def run_copy(module, **variables):
    """Prints the path of the library that a copy of the module loads."""
    shutil.copytree(SOURCE / "python/tessera", module, ignore=shutil.ignore_patterns("__pycache__"), dirs_exist_ok=True)
    env = {name: value for name, value in os.environ.items() if name not in ("TESSERA_LIBRARY", "LD_LIBRARY_PATH")}
    return subprocess.run([sys.executable, "-c", "import tessera; tessera.init(); print(tessera._library.load_library()._name)"],
                          env={**env, "PYTHONPATH": os.path.dirname(module), **variables}, capture_output=True, text=True)


@pytest.mark.parametrize("name", LAYOUTS)
def test_layouts(tmp_path, name):
    module, folder = (tmp_path / path for path in LAYOUTS[name])
    folder.mkdir(parents=True)
    if name == "build tree":
        (tmp_path / "source/meson.build").touch()
    library = folder / _library.SONAME
    library.symlink_to(_library.load_library()._name)
    done = run_copy(module)
    assert done.stdout == f"{library}\n", done.stderr


def test_no_library(tmp_path):
    module = tmp_path / "site-packages/tessera"
    for variables, message in [
        ({}, "libtessera is not loaded: libtessera.so.2: cannot open shared object file"),
        ({}, f"searched: {module}/_native/lib/libtessera.so.2"),
        ({}, "set TESSERA_LIBRARY to the path of libtessera.so.2"),
        ({"TESSERA_LIBRARY": "/nowhere/libtessera.so.2"}, "/nowhere/libtessera.so.2: cannot open"),
        ({"TESSERA_LIBRARY": "libc.so.6"}, "libc.so.6: the library has no tess_error; it is older or newer than this module"),
    ]:
        done = run_copy(module, **variables)
        assert done.returncode == 1 and message in done.stderr.splitlines()[-1], done.stderr
