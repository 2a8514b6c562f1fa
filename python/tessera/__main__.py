"""python -m tessera: the command `tessera` that belongs to the library of this module."""
from __future__ import annotations

import os
import sys


def main() -> None:
    """Becomes the command, with the arguments of this program."""
    from ._library import find_command

    command = find_command()
    os.execv(command, ["tessera", *sys.argv[1:]])


if __name__ == "__main__":
    main()
