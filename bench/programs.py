"""programs.py - what script/bench and bench/train share: runs with a time limit, versions, results of stopped runs."""
import ctypes, os, re, signal, subprocess, time

ROOT = os.path.normpath(os.path.join(os.path.dirname(os.path.abspath(__file__)), ".."))


class Failed(Exception):
    """A run without a result; the message has the reason."""


def raise_timeout(*_):
    raise TimeoutError


def set_signals():
    """Turns the signals that stop a bench into KeyboardInterrupt."""
    for number in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.default_int_handler)


def end_with_parent():
    ctypes.CDLL(None).prctl(1, signal.SIGKILL)  # PR_SET_PDEATHSIG: nothing runs on when the bench is killed


def end_all(processes):
    for p in processes:
        try:
            os.killpg(p.pid, signal.SIGKILL)
        except ProcessLookupError:
            pass
        p.wait()


def find_error(log):
    """Returns the line of a log that names the error: the first with an exception of Python, else the last one."""
    log.seek(0)
    lines = [x.strip() for x in log.read().decode(errors="replace").splitlines() if x.strip()] or ["nothing on stderr"]
    return ([x for x in lines if re.search(r"\b\w*Error: ", x) and "ChildFailed" not in x] or lines[-1:])[0]


def run_program(command, log, limit, env=None, prepare=end_with_parent):
    """Runs a command in a session of its own, with stderr in `log`. `prepare` runs in the child.

    Returns its output, the seconds to the first byte and from there to the end, and its resource usage. Raises Failed
    if it fails or has not ended after `limit` seconds.
    """
    signal.signal(signal.SIGALRM, raise_timeout)
    begin = time.monotonic()
    p = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=log, stdin=subprocess.DEVNULL, start_new_session=True,
                         env={**os.environ, **(env or {})}, preexec_fn=prepare)
    try:
        signal.alarm(limit)
        text = p.stdout.read(1)
        first = time.monotonic()
        text += p.stdout.read()
        _, status, usage = os.wait4(p.pid, 0)
        p.returncode = os.waitstatus_to_exitcode(status)
        times = first - begin, time.monotonic() - first
    except TimeoutError:
        raise Failed("not ended after %d s" % limit)
    finally:
        signal.alarm(0)
        if p.returncode is None:
            end_all([p])
    if p.returncode:
        raise Failed("status %d: %s" % (p.returncode, find_error(log)))
    return text, times, usage


def find_output(command, pattern):
    """Returns the first group of the pattern in what the command prints, or None."""
    try:
        text = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, stdin=subprocess.DEVNULL, text=True,
                              timeout=100).stdout
    except (OSError, subprocess.TimeoutExpired):
        return None
    found = re.search(pattern, text, re.M)
    return found and found.group(1)


def find_version(tessera):
    """Returns the version of a program, and the commit of this tree."""
    version = find_output([tessera, "--version"], r"^(tessera \S+|\S+ \d+\.\d+\.\d+)")
    commit = find_output(["git", "-C", ROOT, "rev-parse", "--short=12", "HEAD"], r"^(\w+)$")
    return " ".join(filter(None, [version, commit]))


def cut_part(path):
    """Removes a last line that was cut off when a run was killed."""
    with open(path, "r+b") as f:
        f.truncate(f.read().rfind(b"\n") + 1)
