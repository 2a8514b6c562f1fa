"""Exceptions of the module: one class per status of the library, which Python's own handlers catch, too."""
from __future__ import annotations

import re


class Error(Exception):
    """A failure of the library, with its message.

    `status` is the name of the status ("EINVAL"). `rank` is the rank that the failure began on, or None.
    """

    def __init__(self, message: str, status: str = "EBUG") -> None:
        super().__init__(message, status)
        self.status = status
        found = re.match(r"rank (\d+)\b", message)
        self.rank = int(found.group(1)) if found else None

    def __str__(self) -> str:
        return str(self.args[0])


class ArgumentError(Error, ValueError):
    """EINVAL: an argument, an option, a plan or a file is invalid."""


class OutOfMemoryError(Error, MemoryError):
    """ENOMEM: out of memory."""


class UnsupportedError(Error, NotImplementedError):
    """ENOTSUP: valid, but not supported by this machine, backend or device."""


class NotFoundError(Error, LookupError):
    """ENOENT: no such file, plugin or name."""


class DeadlineError(Error, TimeoutError):
    """ETIMEOUT: a deadline has passed."""


class MismatchError(Error):
    """EMISMATCH: ranks make calls that do not match, or have different files or options."""


class PeerError(Error, ConnectionError):
    """EPEER: another rank, or the launcher, has ended."""


class RankError(Error):
    """A rank that ended by a signal or did not return, or an exception of a rank that cannot be pickled."""


STATUS = {
    0: "OK", 1: "PENDING", -1: "EINVAL", -2: "ENOMEM", -3: "ENOTSUP", -4: "ENOENT", -5: "EABI", -6: "EPERM",
    -7: "ETIMEOUT", -8: "EMISMATCH", -9: "EPEER", -10: "EABORTED", -11: "EDEVICE", -12: "EIO", -13: "EBUG",
}
CODES = {name: code for code, name in STATUS.items()}
_CLASSES: dict[str, type[Error]] = {
    "EINVAL": ArgumentError, "ENOMEM": OutOfMemoryError, "ENOTSUP": UnsupportedError, "ENOENT": NotFoundError,
    "ETIMEOUT": DeadlineError, "EMISMATCH": MismatchError, "EPEER": PeerError,
}


def make_error(status: int, message: str) -> Error:
    """Returns the exception of a failed call."""
    name = STATUS.get(status, "EBUG")
    return _CLASSES.get(name, Error)(message, name)
