"Every fault: what the ranks run, what the test does meanwhile, and what must be said and be true afterwards."
from dataclasses import dataclass
from typing import Callable

from test_healing import KINDS, SETUP

from . import kernels
from .trial import ENDED, RANKS, WORKS, fill_disk, interrupt, kill_controller, kill_driver, kill_guard, tear_lines


@dataclass(frozen=True)
class Fault:
    "One row. `body` runs on every rank, as a cell and as a job's function; `fault()` in it marks the moment"
    name: str
    body: str = ""
    rank: int | None = 1                     # which rank the error names; None: no rank is to blame
    says: str = ""                           # what the session's error says (a pattern)
    then: str = WORKS                        # what becomes of the session
    refuses: str = r"rank {} is gone: .*%dist restart --ranks {} only these"
    shows: str = ""                          # what that rank's output has in the session (a pattern)
    job: str = ""                            # what the job's error says, if not the same
    state: str = "failed"                    # how the job ends
    act: Callable | None = None              # what the test does once every rank has called `fault()`
    after: str = ""                          # a cell that clears away what the fault left in the ranks
    setup: str = ""                          # a cell (the beginning of the function) before the fault
    ranks: int = 2
    no_session: str = ""                     # why there is no such fault in a session
    no_job: str = ""                         # ... in a job
    kernel: tuple = ()                       # instead of all that: how it is tried in (a session, a job), in a kernel of its own


BLOCKS = "dist.all_reduce(torch.ones(1))"
def once(what, blocks=BLOCKS): return f"if rank == 1:\n    fault()\n    {what}\n{blocks}"
def everywhere(what): return f"fault()\n{what}"
def heals(kind): return Fault(f"heal: {kind}", once("raise ValueError('a bad batch')", KINDS[kind]), says="ValueError: a bad batch.*\n(.*\n)*.*ranks 0, 2-3: waited in .*\nthe ranks have a new process group", job="ValueError: a bad batch",
                              setup=SETUP.get(kind, ""), ranks=4)

TIRED = "import hashlib\nt = time.monotonic()\nx = hashlib.pbkdf2_hmac('sha256', b'', b'', 100_000)\nn = int(100_000 * 3 / (time.monotonic() - t))\n"

FAULTS = [
    Fault("raise", once("raise ValueError('a bad batch')"), says="ValueError: a bad batch.*\nrank 0: waited in all_reduce .*\nthe ranks have a new process group, their variables are kept", job="ValueError: a bad batch"),
    Fault("sys.exit", once("sys.exit(4)"), says="SystemExit: 4", job="SystemExit: exit code 4"),
    Fault("exit", once("os._exit(3)"), says="its process ended with exit code 3", then=RANKS),
    Fault("SIGKILL", once("os.kill(os.getpid(), signal.SIGKILL)"), says="its process was killed by SIGKILL", then=RANKS),
    Fault("SIGSEGV", once("import ctypes; ctypes.string_at(0)"), says="its process was killed by SIGSEGV", then=RANKS),
    Fault("SIGSTOP", everywhere(f"if rank == 1: os.kill(os.getpid(), signal.SIGSTOP)\n{BLOCKS}"), says="did not stop", then=RANKS, refuses="rank 1 is still in cell .*%dist restart --ranks 1 only", act=interrupt, state="cancelled"),
    Fault("no memory: Python", once("limit(); x = bytearray(1 << 36)"), says="MemoryError", after="unlimit()"),
    Fault("no memory: torch", once("limit(); x = torch.ones(1 << 34)"), says="RuntimeError: .*can't allocate memory", after="unlimit()"),
    Fault("mutual recv", everywhere("dist.recv(torch.zeros(1), src=1 - rank)"), rank=None, says="rank 0 waited in recv .*\nrank 1 waited in recv", act=interrupt, state="cancelled"),
    Fault("shape mismatch", everywhere("dist.all_reduce(torch.ones(1000 + 1000 * rank))"), rank=0, says="SIGABRT; native code gave up, its last output says why", then=RANKS, shows="gloo::EnforceNotMet"),
    Fault("wrong order", everywhere("dist.all_reduce(torch.ones(1)) if rank == 0 else dist.barrier()"), rank=None, says="rank 0 waited in all_reduce .*\nrank 1 waited in barrier", act=interrupt, state="cancelled"),
    Fault("interrupt: collective", everywhere("dist.barrier() if rank == 1 else dist.recv(torch.zeros(1), src=1)"), rank=None, says="rank 0 waited in recv .*\nrank 1 waited in barrier", act=interrupt, state="cancelled"),
    Fault("interrupt: Python loop", everywhere("while True: pass"), rank=None, says="KeyboardInterrupt", act=interrupt, state="cancelled"),
    Fault("interrupt: time.sleep", everywhere("time.sleep(600)"), rank=None, says="KeyboardInterrupt", act=interrupt, state="cancelled"),
    Fault("interrupt: C code", TIRED + everywhere("x = hashlib.pbkdf2_hmac('sha256', b'', b'', n)\nwhile True: pass"), rank=None, says="KeyboardInterrupt", act=interrupt, state="cancelled"),
    Fault("GIL held for ever", everywhere(f"if rank == 1: sum(range(10 ** 13))\n{BLOCKS}"), says="did not stop", then=RANKS, refuses="rank 1 is still in cell .*%dist restart --ranks 1 only", act=interrupt, state="cancelled"),
    Fault("guard killed", everywhere("time.sleep(600)"), rank=None, says="guard .* is gone without a last word", then=ENDED, job="guard .* is gone without a last word", act=kill_guard, state="lost"),
    Fault("driver killed", everywhere("time.sleep(600)"), rank=None, job="the process that starts the ranks: its process was killed by SIGKILL", act=kill_driver, no_session="a session's ranks are children of its guard"),
    Fault("controller killed", everywhere("time.sleep(600)"), rank=None, says="serve_controller ended", then=ENDED, act=kill_controller, no_job="a job has no controller"),
    Fault("full disk", everywhere("time.sleep(1)\nfor i in range(20_000): print('a line that finds no room', i)\nif rank == 1: raise ValueError('a bad batch')\n" + BLOCKS), says="ValueError: a bad batch", act=fill_disk, shows=r"\[\d+ bytes are missing here: the disk was full\]"),
    Fault("torn event line", once("import dtnb.rank.worker as w; os.write(w.here.writer.fd, b'{\"kind\":\"state\",\"t\":17'); os.kill(os.getpid(), signal.SIGKILL)"), says="its process was killed by SIGKILL", then=RANKS),
    Fault("torn, and written on", everywhere("time.sleep(1)\nif rank == 1: os.kill(os.getpid(), signal.SIGKILL)\n" + BLOCKS), says="its process was killed by SIGKILL", then=RANKS, act=tear_lines),
    Fault("clock 3 s ahead", "ahead(3)\n" + once("raise ValueError('a bad batch')"), says="ValueError: a bad batch", after="ahead(0)"),
    Fault("clock 3 s behind", "ahead(-3)\n" + once("raise ValueError('a bad batch')"), says="ValueError: a bad batch", after="ahead(0)"),
    Fault("clock 3 s ahead, all fail", "ahead(3)\n" + once("raise ValueError('a bad batch')", "time.sleep(1.5)\nraise KeyError('later')"), says="ValueError: a bad batch", after="ahead(0)"),
    Fault("port taken", once("import socket; socket.create_server(('127.0.0.1', int(os.environ['MASTER_PORT'])))"), says="OSError: .*Address already in use"),
    Fault("stdout closed", once("sys.stdout.close(); sys.stderr.close(); os.close(1); os.close(2); raise ValueError('a bad batch')"), says="ValueError: a bad batch"),
    Fault("fork that stays", once("if os.fork() == 0: os.setsid(); time.sleep(600)\n    raise ValueError('a bad batch')"), says="ValueError: a bad batch"),
    Fault("fork, then killed", once("if os.fork() == 0: os.setsid(); time.sleep(600)\n    os.kill(os.getpid(), signal.SIGKILL)"), says="its process was killed by SIGKILL", then=RANKS),
    Fault("fork that goes on", once("if os.fork() == 0: raise SystemExit('from a fork')\n    time.sleep(1)\n    raise ValueError('a bad batch')"), says="ValueError: a bad batch"),
    *map(heals, ["all_reduce", "ddp", "subgroup", "mesh", "fsdp", "store"]),
    Fault("kernel restart", kernel=(kernels.session_after_restart, kernels.job_after_restart)),
    Fault("kernel shut down", kernel=(kernels.session_after_shutdown, None), no_job="it goes on, as after a restart"),
    Fault("kernel SIGKILL", kernel=(kernels.session_after_sigkill, kernels.job_after_sigkill)),
    Fault("kernel SIGKILL, then a raise", kernel=(kernels.session_of_blocked_ranks, None), no_job="as above"),
    Fault("read-only job folder", kernel=(kernels.session_in_read_only_folder, kernels.job_in_read_only_folder)),
    Fault("read-only home", kernel=(kernels.session_in_read_only_home, kernels.job_in_read_only_home)),
]
