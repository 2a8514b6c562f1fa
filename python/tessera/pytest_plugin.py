"""The plugin of pytest: options, and the fixtures tessera_ranks and tessera_model. It loads nothing until a test needs it."""
from __future__ import annotations

import os
import sys
from typing import Any, Callable, Iterator

import pytest

import tessera

DEADLINE = 10.0  # seconds
_before = pytest.StashKey[dict[str, "str | None"]]()
_reporter = pytest.StashKey["_Reporter"]()


class _Reporter:
    """Enables reports of crashes when the library is loaded, behind the handler of pytest's faulthandler.

    They go to the stderr of pytest, as those of faulthandler do: what a test has written is lost in a crash.
    """

    def __init__(self) -> None:
        self.fd = os.dup(2)
        self.library: Any = None
        module = sys.modules.get("tessera._library")
        if module and module._found:
            self.enable(module._found)
        tessera._at_load.append(self.enable)

    def enable(self, library: Any) -> None:
        self.library = library
        library.tess_crash_reports_redirect(self.fd)
        library.tess_crash_reports_enable()

    def close(self) -> None:
        tessera._at_load.remove(self.enable)
        if self.library:
            self.library.tess_crash_reports_redirect(2)
        os.close(self.fd)


def pytest_addoption(parser: pytest.Parser) -> None:
    group = parser.getgroup("tessera", "sharded models (tessera)")
    group.addoption("--tessera-backend", metavar="NAME",
                    help="backend of ranks: loopback (threads), shm, gloo (processes), or another (default: TESSERA_BACKEND)")
    group.addoption("--tessera-ranks", metavar="N", type=int, default=2,
                    help="number of ranks of tessera_ranks() and tessera_model() that give none (default: 2)")
    group.addoption("--tessera-timeout", metavar="SECONDS", type=float,
                    help=f"deadline of calls (default: TESSERA_TIMEOUT, or {DEADLINE:g}); a hang fails its test 2 s later")


def pytest_configure(config: pytest.Config) -> None:
    """Sets options as variables, which processes that tests start get as well."""
    config.stash[_reporter] = _Reporter()
    timeout = config.getoption("--tessera-timeout")
    if timeout is None and "TESSERA_TIMEOUT" not in os.environ:
        timeout = DEADLINE
    before = config.stash[_before] = {}
    for name, value in (("TESSERA_BACKEND", config.getoption("--tessera-backend")), ("TESSERA_TIMEOUT", timeout)):
        if value is not None:
            before[name] = os.environ.get(name)
            os.environ[name] = f"{value:g}" if isinstance(value, float) else value


def pytest_unconfigure(config: pytest.Config) -> None:
    reporter = config.stash.get(_reporter, None)
    if reporter:
        reporter.close()
    for name, value in config.stash.get(_before, {}).items():
        if value is None:
            os.environ.pop(name, None)
        else:
            os.environ[name] = value


@pytest.fixture
def tessera_ranks(request: pytest.FixtureRequest) -> Callable[..., Any]:
    """Makes worlds of ranks: `with tessera_ranks(3) as world: assert world.run(lambda g: g.rank) == [0, 1, 2]`.

    tessera_ranks(n, backend=None, timeout=None).
    """
    from . import testing

    def make(ranks: int | None = None, backend: str | None = None, timeout: float | None = None) -> testing.Ranks:
        return testing.Ranks(ranks or request.config.getoption("--tessera-ranks"), backend, timeout)
    return make


@pytest.fixture
def tessera_model(request: pytest.FixtureRequest) -> Iterator[Callable[..., Any]]:
    """Opens models, and closes them after the test: tessera_model(directory=None, ranks=None, mesh=None, plan=None, ...).

    The arguments are those of tessera.load. Without a directory it is the checkpoint of the demo.
    """
    from . import _library, testing
    opened = []

    def make(directory: Any = None, ranks: int | None = None, mesh: str | None = None, *args: Any, **options: Any) -> Any:
        if not ranks and not mesh:
            ranks = request.config.getoption("--tessera-ranks")
        opened.append(testing.open_model(directory or _library.get_demo(), ranks, mesh, *args, **options))
        return opened[-1]
    yield make
    for model in opened:
        model.close()
