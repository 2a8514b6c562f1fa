"""The pytest plugin and tessera.testing: each fixture and assertion passes, and fails with its message, in a pytest of its own."""
import importlib.util
import os
import re
import subprocess
import sys
import time

import pytest

from conftest import SOURCE

BACKENDS = ["loopback", "shm"]
HEAD = """
import ctypes, time
import numpy as np, pytest, tessera
from tessera import Replicate, Shard
from tessera.testing import assert_collectives, assert_matches_transformers, assert_same_bits
DIR = tessera.get_demo()
"""


@pytest.fixture
def run(tmp_path):
    """Runs pytest on a file with these tests; returns its status and output."""
    def call(tests, *arguments, environment={}):
        (tmp_path / "test_it.py").write_text(HEAD + tests)
        variables = {name: value for name, value in os.environ.items() if name not in ("TESSERA_BACKEND", "TESSERA_TIMEOUT")}
        command = [sys.executable, "-m", "pytest", "-p", "tessera.pytest_plugin", "--tb=short", "-rs", *arguments, "test_it.py"]
        done = subprocess.run(command, cwd=tmp_path, env=variables | environment, capture_output=True, text=True, timeout=120)
        return done.returncode, done.stdout + done.stderr
    return call


def check(result, **counts):
    """Checks the numbers of tests: passed=1, failed=2, skipped=0."""
    status, text = result
    found = {word: int(n) for n, word in re.findall(r"(\d+) (passed|failed|skipped|error)", text.splitlines()[-1] if status < 2 else text)}
    assert found == counts, text


PASSING = """
def test_bits():
    assert_same_bits(DIR, "tp+sp", ranks=[1, 3], meshes=["dp=2,tp=2"], train=True)

@pytest.mark.parametrize("n", [1, 2, 3])
def test_ranks(tessera_ranks, n):
    with tessera_ranks(n) as world:
        assert world.run(lambda g: (g.rank, g.backend)) == [(r, BACKEND if n > 1 else world.backend) for r in range(n)]
        assert world.run(lambda g, x, y: float(g.all_reduce(np.float32([x]))[0]) + y, 2, y=1) == [2 * n + 1] * n

def test_default_ranks(tessera_ranks):
    assert tessera_ranks().run(lambda g: g.size) == [3] * 3

def test_model(tessera_model):
    one, many = tessera_model(ranks=1, plan="none"), tessera_model(DIR, mesh="tp=2", plan="tp")
    assert np.array_equal(many.logits([1, 2, 3]), one.logits([1, 2, 3]))
    assert many.ranks == 2 and tessera_model().ranks == 3
    assert many.generate("Once", max_tokens=4, temperature=0) == one.generate("Once", max_tokens=4, temperature=0)
    assert many.grad([1, 2, 3])[0] == one.grad([1, 2, 3])[0]

def test_collectives():
    assert_collectives(DIR, "tp", {"model.layers.0.mlp": {"all_reduce": 1}}, ranks=2)
    assert_collectives(DIR, "tp", {"model.layers.*.mlp": {"all_reduce": (1, 256)}, "model.norm": {}}, mesh="tp=2")
    assert_collectives(DIR, "tp", {"": {"all_reduce": 11, "gather": 1}})
    assert_collectives(DIR, "tp", {"model.layers.0.mlp": {"all_reduce": (1, 768)}}, tokens=3)
    assert_collectives(DIR, "tp", {"model.layers.1.mlp": {"all_reduce": 1}, "": {"all_reduce": 25, "all_gather": 0, "gather": 0}}, tokens=3, train=True)
"""


@pytest.mark.parametrize("backend", BACKENDS)
def test_what_passes(run, backend):
    tests = PASSING.replace("BACKEND", repr(backend))
    if backend != "loopback":
        tests = tests.replace("[1, 3], meshes", "[3], meshes")
    result = run(tests, "--tessera-backend", backend, "--tessera-ranks", "3")
    check(result, passed=7)


@pytest.fixture
def wrong_style():
    """The folder of the plugin whose style has a fault."""
    from tessera._library import find_library
    folder = os.path.join(os.path.dirname(os.path.realpath(find_library())), "tests", "fixtures")
    if not os.path.exists(os.path.join(folder, "tess-style-wrong.so")):
        pytest.skip(f"{folder} has no tess-style-wrong.so")
    return folder


def test_same_bits_fails(run, wrong_style):
    """A style that scales a value on all ranks: the first module, the element, the distance, the style, and how many differ."""
    rule = '["model.layers.1.self_attn.o_proj=wrong:scales"]'
    result = run(f"""
def test_inference():
    assert_same_bits(DIR, "tp+sp", ranks=[3], overrides={rule})

def test_mesh():
    assert_same_bits(DIR, "tp", meshes=["dp=2,tp=2"], overrides={rule})

def test_gradient():
    assert_same_bits(DIR, "tp", ranks=3, train=True, overrides=["model.layers.1.self_attn.o_proj=wrong:gradient"])

def test_refused():
    assert_same_bits(DIR, {{"model.layers.*.mlp.up_proj": "no_such"}}, ranks=3)
""", environment={"TESSERA_PLUGIN_PATH": wrong_style})
    check(result, failed=4)
    number = r"-?[\d.e-]+"
    where = rf"first at model\.layers\.1\.self_attn\.o_proj \(row \d+, column \d+: {number} and {number}, \d+ ulps?\)"
    assert re.search(rf"E +AssertionError: plan tp\+sp on 3 ranks differs from one rank {where}, style .*wrong.*; \d+ of 64 modules differ", result[1]), result[1]
    assert re.search(rf"plan tp on 4 ranks, mesh dp=2,tp=2, differs from one rank {where}", result[1]), result[1]
    assert re.search(r"plan tp on 3 ranks differs from one rank in training first at \S+\.grad", result[1]), result[1]
    assert "NotFoundError" in result[1] and "no_such" in result[1]
    assert "_threads.py" not in result[1]


def test_collectives_fail(run):
    result = run("""
def test_count():
    assert_collectives(DIR, "tp", {"model.layers.*.mlp": {"all_reduce": 2}})

def test_bytes():
    assert_collectives(DIR, "tp", {"model.layers.0.mlp": {"all_reduce": (1, 255)}})

def test_other_kind():
    assert_collectives(DIR, "tp+sp", {"model.layers.0.mlp": {"reduce_scatter": 1}})

def test_name():
    assert_collectives(DIR, "tp", {"model.layers.0.mpl": {}})
""")
    check(result, failed=4)
    for text in ("plan tp on 2 ranks: model.layers.0.mlp makes 1 all_reduce of 256 bytes, not 2; its collectives: all_reduce of 256 bytes at "
                 "model.layers.0.mlp.down_proj", "makes 1 all_reduce of 256 bytes, not 1 of 255 bytes", "plan tp+sp on 2 ranks: model.layers.0.mlp makes",
                 "has no module model.layers.0.mpl; its modules: lm_head, model, "):
        assert text in result[1], result[1]


def test_transformers(run):
    result = run("""
def test_inference():
    assert_matches_transformers(DIR, "tp", ranks=2)

def test_training():
    assert_matches_transformers(DIR, "tp", ranks=2, train=True)

def test_tolerance():
    assert_matches_transformers(DIR, "tp", ranks=2, tolerance=1e-9)
""")
    if importlib.util.find_spec("transformers") and importlib.util.find_spec("torch"):
        check(result, passed=2, failed=1)
        assert "plan tp on 2 ranks differs from Transformers first at model." in result[1]
    else:
        check(result, skipped=3)
        assert "needs torch and transformers" in result[1]


@pytest.mark.parametrize("backend", BACKENDS)
def test_a_failing_rank_shows_its_traceback(run, backend):
    result = run("""
def fail(g):
    if g.rank == 1:
        raise KeyError("mine")
    g.barrier()

def test_it(tessera_ranks):
    with tessera_ranks(3) as world:
        world.run(fail)
""", "--tessera-backend", backend)
    check(result, failed=1)
    assert "KeyError: 'mine'" in result[1] and "raised on rank 1 of 3" in result[1]
    assert re.search(r'test_it.py(:10: in fail|", line 10, in fail)', result[1]), result[1]


HANGS = """
def hang(g):
    if g.rank == 1:
        time.sleep(60)
    g.barrier()

def test_program(tessera_ranks):
    with tessera_ranks(3) as world:
        world.run(hang)

def hang_in_model(g):
    with tessera.load(DIR, plan="tp") as model:
        hang(g) if g.rank == 1 else model.logits([1, 2])

def test_model(tessera_ranks):
    with tessera_ranks(3) as world:
        world.run(hang_in_model)

def spin(site):
    if tessera.init().rank or site.config == "all":
        time.sleep(60)
    return [None]

tessera.register_style("spin", inputs=spin, outputs=[None])

def test_style_of_one_rank():
    assert_same_bits(DIR, "tp", ranks=2, overrides=["model.layers.1.input_layernorm=spin:one"])

def test_style_of_all_ranks():
    assert_same_bits(DIR, "tp", ranks=2, overrides=["model.layers.1.input_layernorm=spin:all"])
"""
STUCK = "layout() of style spin (registered by the program) at model.layers.1.input_layernorm"
NAMED = {
    "test_program": ["rank 1 has not joined by the deadline of rank ", "barrier, call 1, at test_it.py:11", "rank 1 has not returned: it is in test_it.py:10, in hang",
                     "rank 0 was in barrier at test_it.py:11, in hang", "rank 2 was in barrier at test_it.py:11, in hang"],
    "test_model": ["rank 1 has not joined by the deadline of rank ", "rank 1 has not returned: it is in test_it.py:10, in hang",
                   "rank 0 was in logits at test_it.py:19, in hang_in_model"],
    "test_style_of_one_rank": ["rank 1 has not joined by the deadline of rank 0", "at program", STUCK],
    "test_style_of_all_ranks": ["ranks 0 and 1 have been in " + STUCK],
}


@pytest.mark.parametrize("backend", BACKENDS)
def test_hangs_are_failures(run, backend):
    start = time.monotonic()
    result = run(HANGS, "--tessera-backend", backend, "--tessera-timeout", "0.5")
    assert time.monotonic() - start < 10 * len(NAMED)
    check(result, failed=len(NAMED))
    for name, texts in NAMED.items():
        part = result[1].partition(f"_ {name} _")[2]
        message = next(line for line in part.splitlines() if line.startswith("E   ") and "DeadlineError" in line)
        assert not [text for text in texts if text not in message], message


CRASH = """
def crash(site):
    ctypes.string_at(0)

tessera.register_style("crash", inputs=crash, outputs=[None])

def test_it():
    assert_same_bits(DIR, "tp", ranks=2, overrides=["model.layers.1.input_layernorm=crash"])
"""
CRASHED = "plugin: error: layout() of style crash (registered by the program) at model.layers.1.input_layernorm: signal 11 (Segmentation fault)"


def test_a_crash_of_a_process(run):
    result = run(CRASH, "--tessera-backend", "shm")
    check(result, failed=1)
    assert re.search(r"E +tessera.*RankError: rank \d of 2 was ended by signal 11 \(SIGSEGV\)", result[1])
    assert CRASHED in result[1].partition("Captured stderr call")[2]


@pytest.mark.parametrize("arguments", [[], ["-p", "no:faulthandler"]])
def test_a_crash_of_a_thread(run, arguments):
    """The report of the plugin is not lost in captured output, and faulthandler adds the stacks of Python."""
    status, text = run(CRASH, *arguments)
    assert status == -11 and CRASHED in text
    assert ("Fatal Python error" in text) == (not arguments) and text.count("test_it.py\", line 9 in crash") == (not arguments)


SEVERAL = """
@pytest.mark.parametrize("n", range(1, 5))
def test_it(tessera_ranks, n):
    assert tessera_ranks(n).run(lambda g: g.size) != [3] * 3
"""


def test_options_of_pytest(run):
    check(run(SEVERAL, "-x"), passed=2, failed=1)
    check(run(SEVERAL, "--lf"), failed=1)
    if importlib.util.find_spec("xdist"):
        check(run(SEVERAL, "-n", "2"), passed=3, failed=1)


def test_options_are_variables(run):
    tests = """
import os
def test_it():
    assert (os.environ.get("TESSERA_BACKEND"), os.environ["TESSERA_TIMEOUT"]) == WANT
"""
    check(run(tests.replace("WANT", "(None, '10')")), passed=1)
    check(run(tests.replace("WANT", "('shm', '2.5')"), "--tessera-backend", "shm", "--tessera-timeout", "2.5"), passed=1)
    check(run(tests.replace("WANT", "('gloo', '7')"), environment={"TESSERA_BACKEND": "gloo", "TESSERA_TIMEOUT": "7"}), passed=1)


def test_the_plugin_loads_nothing(tmp_path):
    """It is part of every run of pytest in its environment."""
    (tmp_path / "test_it.py").write_text("import sys\ndef test_it():\n    assert not {'numpy', 'tessera._library', 'tessera.testing'} & set(sys.modules)\n")
    subprocess.run([sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-p", "tessera.pytest_plugin", "test_it.py"], cwd=tmp_path, check=True,
                   capture_output=True)
