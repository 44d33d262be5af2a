"""Threads of the host, threads of the package, forks and the end of the process."""

import os
import pathlib
import subprocess
import sys
import textwrap
import threading

import numpy as np
import pytest

import fovea


@pytest.fixture
def long(rng):
    """Enough work for several threads."""
    return tuple(rng.standard_normal((1, heads, 300, 64), np.float32) for heads in (8, 2, 2))


def run(program, **options):
    return subprocess.run([sys.executable, "-c", textwrap.dedent(program)], capture_output=True, text=True, timeout=120, **options)


def threads_of_this_process():
    return len(os.listdir("/proc/self/task"))


@pytest.mark.parametrize("threads", [1, 2, 3, 7])
def test_bits_do_not_depend_on_the_number_of_threads(long, level, threads):
    wanted = fovea.attention(*long, causal=True, return_lse=True, context=fovea.Context(isa=level.isa, threads=1))
    context = fovea.Context(isa=level.isa, threads=threads)
    assert context.threads == threads and context.isa == level.isa
    for _ in range(5):
        for got, x in zip(fovea.attention(*long, causal=True, return_lse=True, context=context), wanted):
            np.testing.assert_array_equal(got, x)


@pytest.mark.parametrize("shared", [True, False], ids=["one context", "a context each"])
def test_eight_python_threads_have_the_bits_of_one(rng, shared):
    calls = [tuple(rng.standard_normal((1, heads, 60 + 17 * i, 64), np.float32) for heads in (8, 2, 2)) for i in range(8)]
    one = fovea.Context(threads=3)
    wanted = [fovea.attention(*call, causal=True, context=one) for call in calls]
    wrong = []

    def work(i):
        context = one if shared else fovea.Context(threads=3)
        for turn in range(20):
            j = (i + turn) % 8
            if not np.array_equal(fovea.attention(*calls[j], causal=True, context=context), wanted[j]):
                wrong.append((i, turn))

    workers = [threading.Thread(target=work, args=(i,)) for i in range(8)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    assert not wrong


def test_threads_start_with_work_and_end_with_their_context():
    done = run("""
        import os, numpy as np, fovea
        def threads(): return len(os.listdir("/proc/self/task"))
        before = threads()
        context = fovea.Context(threads=4)
        q = np.ones((1, 8, 300, 64), "f4")
        fovea.attention(q[:, :, :1], q[:, :, :9], q[:, :, :9], context=context)
        small = threads() - before
        fovea.attention(q, q, q, context=context)
        large = threads() - before
        del context
        print(small, large, threads() - before)
        """)
    assert done.stdout == "0 3 0\n", done.stderr


def test_waiting_threads_use_no_cpu(long):
    import time

    context = fovea.Context(threads=2)
    fovea.attention(*long, context=context)
    time.sleep(0.05)
    before = time.process_time()
    time.sleep(0.5)
    assert time.process_time() - before < 0.05


def test_other_threads_run_while_a_call_computes(rng):
    q, k, v = (rng.standard_normal((1, 8, 1500, 64), np.float32) for _ in range(3))
    started, done, turns = threading.Event(), threading.Event(), 0

    def work():
        started.set()
        fovea.attention(q, k, v, context=fovea.Context(threads=1))
        done.set()

    worker = threading.Thread(target=work)
    worker.start()
    started.wait()
    while not done.is_set():
        turns += 1
    worker.join()
    assert turns > 100


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork() here")
def test_a_forked_child_has_threads_of_its_own(long):
    context = fovea.Context(threads=3)
    wanted = fovea.attention(*long, context=context)
    stop = threading.Event()

    def keep_the_pool_busy():
        while not stop.is_set():
            fovea.attention(*long, context=context)

    worker = threading.Thread(target=keep_the_pool_busy)
    worker.start()
    try:
        for _ in range(10):
            child = os.fork()
            if child == 0:
                before = threads_of_this_process()
                ok = np.array_equal(fovea.attention(*long, context=context), wanted)
                ok = ok and before == 1 and threads_of_this_process() == 3
                os._exit(0 if ok else 1)
            assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    finally:
        stop.set()
        worker.join()
    np.testing.assert_array_equal(fovea.attention(*long, context=context), wanted)


def test_multiprocessing_by_fork():
    done = run("""
        import multiprocessing, numpy as np, fovea
        q = np.random.default_rng(1).standard_normal((1, 8, 300, 64)).astype("f4")
        wanted = fovea.attention(q, q, q)
        def work(i):
            return np.array_equal(fovea.attention(q, q, q), wanted)
        with multiprocessing.get_context("fork").Pool(2) as pool:
            assert all(pool.map(work, range(8)))
        """)
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("threads, tokens", [(1, 40), (3, 400)], ids=["waiting for the interpreter", "computing"])
def test_the_process_may_end_during_calls(threads, tokens):
    for _ in range(4):
        done = run(f"""
            import threading, time, numpy as np, fovea
            q = np.ones((1, 8, {tokens}, 64), "f4")
            context = fovea.Context(threads={threads})
            def work():
                while True:
                    fovea.attention(q, q, q, context=context)
            for _ in range(16):
                threading.Thread(target=work, daemon=True).start()
            time.sleep(0.05)
            print("end")
            """)
        assert (done.returncode, done.stdout, done.stderr) == (0, "end\n", "")


def test_the_environment_chooses_what_calls_without_a_context_use():
    program = "import fovea; i = fovea.info(); print(i['isa'], i['threads'])"
    environment = {**os.environ, "FOVEA_ISA": "scalar", "OMP_NUM_THREADS": "1"}
    assert run(program, env=environment).stdout == "scalar 1\n"
    environment["FOVEA_ISA"] = "sse2"
    done = run(program, env=environment)
    assert "fovea.errors.ArgumentError: FOVEA_ISA" in done.stderr
    assert fovea.info()["threads"] <= len(os.sched_getaffinity(0))


def test_a_table_of_tuning_is_taken_from_argument_and_environment(tmp_path, monkeypatch):
    monkeypatch.delenv("FOVEA_TUNING", raising=False)
    q = np.ones((1, 1, 5, 8), np.float32)
    panels = lambda context: fovea.explain(q, q, q, context=context)["group_panels"]
    table, other, bad = (str(tmp_path / name) for name in ("table", "other", "bad"))
    for path, text in ((table, "scalar.group_panels = 3"), (other, "scalar.group_panels = 4"), (bad, "scalar.group_panels = 0")):
        pathlib.Path(path).write_text(f"format = 1\n{text}\n")
    usual = fovea.Context(isa="scalar")
    assert usual.tuning == "" and panels(usual) not in (3, 4)
    for threads in 1, 3:
        tuned = fovea.Context(isa="scalar", threads=threads, tuning=table)
        assert (tuned.tuning, panels(tuned)) == (table, 3)
    monkeypatch.setenv("FOVEA_TUNING", other)
    assert panels(fovea.Context(isa="scalar")) == 4 and panels(fovea.Context(isa="scalar", tuning=table)) == 3
    assert panels(fovea.Context(isa="scalar", tuning="")) == panels(usual)
    for path, text in ((bad, "line 2: scalar.group_panels: 0 is not in"), (str(tmp_path / "none"), "No such file"), ("a\0b", "NUL")):
        with pytest.raises(fovea.ArgumentError, match=text):
            fovea.Context(tuning=path)
    program = "import fovea; print(fovea.info()['tuning'])"
    assert run(program, env={**os.environ, "FOVEA_TUNING": table}).stdout == table + "\n"


def test_a_context_says_what_it_is():
    assert repr(fovea.Context(isa="scalar", threads=2)) == "fovea.Context(isa='scalar', threads=2)"
