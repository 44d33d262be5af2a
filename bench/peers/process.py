"""The parent's side of worker.py."""
import ctypes
import json
import os
import resource
import select
import signal
import subprocess
import sys
from pathlib import Path

TIMEOUT = 120  # seconds for an answer: a library that takes longer has failed

# Memory that was freed stays with the process, in huge pages where the OS has them, so that no library pays for fresh pages in a timed call.
MALLOC = {"MALLOC_MMAP_MAX_": "0", "MALLOC_TRIM_THRESHOLD_": str(1 << 40), "GLIBC_TUNABLES": "glibc.malloc.hugetlb=1"}
THREADS = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS")
PR_SET_PDEATHSIG = 1  # of prctl()


def limit(cpus):
    """Runs in the child: it may use these CPUs and a quarter of the memory, and ends when its parent does."""
    os.sched_setaffinity(0, cpus)
    memory = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") // 4
    resource.setrlimit(resource.RLIMIT_DATA, (memory, memory))
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)


class Failure(Exception):
    """A library's process that ended or gave no answer."""


class Worker:
    """It is stopped while another one is timed: some libraries' threads go on looking for work for milliseconds."""

    def __init__(self, name, threads, cpus, log):
        environment = {**os.environ, **MALLOC, **{variable: str(threads) for variable in THREADS}}
        self.process = subprocess.Popen([sys.executable, "-m", "peers.worker", name, str(threads)], cwd=Path(__file__).parent.parent,
                                        env=environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=log, text=True,
                                        preexec_fn=lambda: limit(cpus))
        self.greeting = self.receive()

    def ask(self, **request):
        self.process.send_signal(signal.SIGCONT)
        try:
            self.process.stdin.write(json.dumps(request) + "\n")
            self.process.stdin.flush()
        except BrokenPipeError:
            pass  # receive() says why
        return self.receive()

    def receive(self):
        ready, _, _ = select.select([self.process.stdout], [], [], TIMEOUT)
        line = self.process.stdout.readline() if ready else ""
        if line:
            self.process.send_signal(signal.SIGSTOP)
            return json.loads(line)
        if not ready:
            self.close()
            raise Failure(f"no answer in {TIMEOUT} s")
        status = self.process.wait()
        raise Failure(f"its process ended: {signal.Signals(-status).name if status < 0 else f'exit status {status}'}")

    def close(self):
        self.process.kill()
        self.process.wait()
        self.process.stdin.close()
        self.process.stdout.close()
