"""The structs and constants of the module are those of the headers, and the library has its functions."""
import ctypes
import os
import shlex
import subprocess

from tessera import _abi, _library
from conftest import SOURCE


def list_structs():
    found, left = [], [_abi.Struct]
    while left:
        one = left.pop()
        left += one.__subclasses__()
        if one.c_name:
            found.append(one)
    return found


def test_layouts(tmp_path):
    lines, ours = [], []
    for struct in list_structs():
        c = "struct " + struct.c_name
        lines.append(f'P("{c} %zu\\n", sizeof({c}));')
        ours.append(f"{c} {ctypes.sizeof(struct)}")
        for name, *_ in struct._fields_:
            at = getattr(struct, name)
            lines.append(f'P("{c}.{name} %zu %zu\\n", offsetof({c}, {name}), sizeof((({c} *)0)->{name}));')
            ours.append(f"{c}.{name} {at.offset} {at.size}")
    for name, value in _abi.CONSTANTS.items():
        lines.append(f'P("{name} %d\\n", (int){name});')
        ours.append(f"{name} {value}")
    assert len(ours) > 150
    source, program = tmp_path / "layout.c", tmp_path / "layout"
    headers = "".join(f"#include <tessera/{name}>\n" for name in sorted(os.listdir(SOURCE / "include/tessera"))
                      if name.endswith(".h") and name != "testing.h")
    source.write_text("#include <stdio.h>\n" + headers + "#define P printf\nint main(void)\n{\n" + "\n".join(lines) + "\nreturn 0;\n}\n")
    cc = shlex.split(os.environ.get("CC", "cc"))
    subprocess.run([*cc, "-std=c11", "-I", SOURCE / "include", source, "-o", program], check=True)
    theirs = subprocess.run([program], check=True, capture_output=True, text=True).stdout.splitlines()
    assert not [f"{a}, in C {b}" for a, b in zip(ours, theirs, strict=True) if a != b]


def test_version():
    """The module, its structs and the library have one version."""
    import tessera
    version = _library.lib.version().decode()
    assert tessera.__version__ == version
    assert version.startswith(_library.VERSION + ".")
