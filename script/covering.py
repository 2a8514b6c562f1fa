"""Covering arrays: few cases that have each pair of values of any two factors; and runs with digests."""
import itertools, os, re, signal, subprocess


class Space:
    """The values of each factor: {factor: [values]}. fits(case) says which of them fit together."""

    def __init__(self, values):
        self.values = values

    def fits(self, case):
        return True

    def list_pairs(self):
        for a, b in itertools.combinations(self.values, 2):
            for pair in itertools.product(self.values[a], self.values[b]):
                if self.fits(dict(zip((a, b), pair))):
                    yield (a, pair[0]), (b, pair[1])

    def list_case_pairs(self, case):
        return set(itertools.combinations([(factor, case[factor]) for factor in self.values if factor in case], 2))

    def complete(self, case, missing, draw):
        """Adds the values that cover the most missing pairs, factor by factor in random order."""
        for factor in draw.sample(list(self.values), len(self.values)):
            if factor in case:
                continue
            values = [v for v in self.values[factor] if self.fits(dict(case, **{factor: v}))]
            draw.shuffle(values)
            case[factor] = max(values, key=lambda v: len(missing & self.list_case_pairs(dict(case, **{factor: v}))))
        return case

    def cover(self, draw):
        """Yields cases until they have all pairs: the best of 20 each time."""
        missing = set(self.list_pairs())
        while missing:
            order = sorted(missing, key=str)
            tries = [self.complete(dict(draw.choice(order)), missing, draw) for _ in range(20)]
            best = max(tries, key=lambda case: len(missing & self.list_case_pairs(case)))
            missing -= self.list_case_pairs(best)
            yield best


def read_digests(text):
    """Returns the digests of losses and weights that `tessera train --digest` printed."""
    return tuple(re.findall(r"^(losses |weights) ([0-9a-f]{64})$", text, re.M))


def run(command):
    """Runs `tessera train --digest`; returns the digests of losses and weights, and an error."""
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=600)
    except subprocess.TimeoutExpired:
        return None, "no end after 600 s"
    digests = read_digests(done.stderr)
    return digests, "" if not done.returncode and len(digests) == 2 else "status %d: %s" % (done.returncode, done.stderr.strip())


def list_processes(parent):
    """Lists the process and all below it."""
    found = [parent]
    for pid in filter(str.isdigit, os.listdir("/proc")):
        try:
            with open("/proc/%s/stat" % pid) as f:
                above = int(f.read().rpartition(")")[2].split()[1])
        except OSError:
            continue
        if above == parent:
            found += list_processes(int(pid))
    return found


def run_killed(command, seconds, draw):
    """Kills one of a run's processes after so many seconds; returns its status, its stderr, and whether it was killed."""
    running, killed = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True), False
    try:
        output = running.communicate(timeout=seconds)[1]
    except subprocess.TimeoutExpired:
        killed = True
        try:
            os.kill(draw.choice(list_processes(running.pid)), signal.SIGKILL)
        except ProcessLookupError:
            pass
        output = running.communicate(timeout=600)[1]
    return running.returncode, output, killed
