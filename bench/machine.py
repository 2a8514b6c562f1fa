"""machine.py - the CPUs, memory nodes, memory and disk that a bench may use, and rough rates for estimates."""
import ctypes, glob, math, os, platform, re, shutil

GB = 1e9
SET_MEMPOLICY = {"x86_64": 238, "aarch64": 237}
DEFAULT, INTERLEAVE = 0, 3  # memory policies of linux/mempolicy.h


def read_text(path):
    try:
        with open(path) as f:
            return f.read()
    except OSError:
        return ""


def parse_list(text):
    """Returns the numbers of a list as 0-3,8."""
    ranges = [[int(x) for x in part.split("-")] for part in text.strip().split(",") if part]
    return [c for r in ranges for c in range(r[0], r[-1] + 1)]


def list_cores(cpus, root="/"):
    """Returns the first of the given CPUs on each core: hardware threads of a core share its arithmetic units."""
    out, seen = [], set()
    for cpu in sorted(cpus):
        siblings = parse_list(read_text(root + "sys/devices/system/cpu/cpu%d/topology/thread_siblings_list" % cpu))
        if cpu not in seen:
            out.append(cpu)
        seen |= {cpu, *siblings}
    return out


def list_groups(kind, root="/"):
    """Lists (version, folder) of the control group of this process for CPUs or memory ("cpu", "memory"), and of its ancestors."""
    for line in read_text(root + "proc/self/cgroup").splitlines():
        _, kinds, path = line.split(":", 2)
        if kinds and kind not in kinds.split(","):
            continue
        for mount in dict.fromkeys((kind, kinds)) if kinds else ("", "unified"):
            at = path
            while True:
                yield 1 if kinds else 2, os.path.join(root, "sys/fs/cgroup", mount) + at.rstrip("/")
                if at in ("", "/"):
                    break
                at = os.path.dirname(at)


def find_quota(root="/"):
    """Returns the CPUs that a quota of the control group or of its ancestors allows, or infinity."""
    least = math.inf
    for version, folder in list_groups("cpu", root):
        words = (read_text(folder + "/cpu.max") if version == 2 else
                 read_text(folder + "/cpu.cfs_quota_us") + " " + read_text(folder + "/cpu.cfs_period_us")).split()
        if len(words) == 2 and words[0].isdigit() and int(words[1]):
            least = min(least, int(words[0]) / int(words[1]))
    return least


def choose_cpus(allowed, root="/"):
    """Returns the default CPUs, one of each core and no more than the quota, and notes on those left out."""
    cores, quota, notes = list_cores(allowed, root), find_quota(root), []
    if len(cores) < len(allowed):
        notes.append("%d of %d CPUs are used: one hardware thread of each core" % (len(cores), len(allowed)))
    if quota < len(cores):
        cores = cores[:max(1, int(quota))]
        notes.append("%d CPUs are used: the control group allows %.3g" % (len(cores), quota))
    return cores, notes


def list_nodes(cpus, root="/"):
    """Returns the memory nodes (NUMA) of the CPUs."""
    out = []
    for path in sorted(glob.glob(root + "sys/devices/system/node/node[0-9]*")):
        if set(parse_list(read_text(path + "/cpulist"))) & set(cpus):
            out.append(int(path.rsplit("node", 1)[1]))
    return out


def set_policy(nodes):
    """Spreads new pages of this process and its children over the nodes; with one node or none, the kernel's default.
    Without it, pages of a file stay on the node of the process that read them first, for all engines that map it."""
    number = SET_MEMPOLICY.get(platform.machine())
    if number is None:
        return False
    spread = len(nodes) > 1
    mask = (ctypes.c_ulong * 16)()
    for node in nodes if spread else []:
        mask[node // 64] |= 1 << node % 64
    libc = ctypes.CDLL(None, use_errno=True)
    return libc.syscall(number, INTERLEAVE if spread else DEFAULT, mask if spread else None, 16 * 64 if spread else 0) == 0


def find_memory(root="/"):
    """Returns the bytes of memory that a new process can have, by the machine, its control group and the ancestors of that."""
    found = re.search(r"^MemAvailable:\s*(\d+) kB", read_text(root + "proc/meminfo"), re.M)
    free = int(found[1]) * 1024 if found else math.inf
    names = {1: ("memory.limit_in_bytes", "memory.usage_in_bytes"), 2: ("memory.max", "memory.current")}  # limit, used
    cached = {1: r"^total_(?:in)?active_file (\d+)", 2: r"^(?:in)?active_file (\d+)"}  # in memory.stat; freed when needed
    for version, folder in list_groups("memory", root):
        words = [read_text(os.path.join(folder, name)).strip() for name in names[version]]
        if all(w.isdigit() for w in words):
            pages = re.findall(cached[version], read_text(os.path.join(folder, "memory.stat")), re.M)
            free = min(free, max(0, int(words[0]) - int(words[1]) + sum(map(int, pages))))
    return free


def find_disk(path):
    """Returns (device, free bytes) of the file system that would hold path."""
    while not os.path.exists(path):
        path = os.path.dirname(path)
    return os.stat(path).st_dev, shutil.disk_usage(path).free


def name_cpu(root="/"):
    found = re.search(r"^model name\s*: (.*)", read_text(root + "proc/cpuinfo"), re.M)
    return found[1] if found else platform.machine()


def describe_cpu(root="/"):
    """Returns the CPU's name and the instruction sets that matter for speed."""
    text = read_text(root + "proc/cpuinfo")
    flags = re.search(r"^(?:flags|Features)\s*: (.*)", text, re.M)
    have = [x for x in ("avx2", "avx512f", "avx512_bf16", "amx_bf16", "asimd", "sve", "bf16") if flags and x in flags[1].split()]
    return "%s (%s)" % (name_cpu(root), ", ".join(have))


def guess_rates(ncpus, cpu):
    """Returns rough (bytes/s from memory, FLOP/s in f32) of CPUs, for estimates of time before anything is measured."""
    flops = 90e9 if "avx512f" in cpu else 50e9 if "avx2" in cpu else 20e9
    return min(ncpus, 8) * 15 * GB + max(0, ncpus - 8) * 2 * GB, ncpus * flops
