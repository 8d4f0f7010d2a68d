"""Pretended machines on this one: trees of processes with hostnames of their own, which end with whoever started them.

`Machines` (in the owner, a test) talks to one supervisor, a process of its own. The supervisor forks one keeper a machine, and the keeper starts the machine's
daemon. A keeper is a sub-reaper: whatever its daemon starts stays below it, however it detaches, so "the machine" is a subtree of processes and nothing is
ever looked for by name. Three things can be killed, and the others clean up:
- the owner: the supervisor sees its pidfd, kills everything below itself and removes the folder;
- the supervisor: its keepers get SIGTERM from the kernel, and each kills what is below it; the owner removes the folder;
- a keeper: its daemon is killed by the kernel, what is left falls to the supervisor, which ends it at the latest when the owner stops.
Only the standard library, because a plain user runs it with the system's Python."""
import contextlib, ctypes, json, os, select, shutil, signal, socket, subprocess, sys, tempfile, threading, time
from pathlib import Path

SBIN = os.pathsep + "/usr/sbin" + os.pathsep + "/sbin"  # where Debian puts daemons: not in a plain user's PATH


def which(program): return shutil.which(program, path=os.environ.get("PATH", os.defpath) + SBIN)


class Machines:
    "A private folder and the processes that live in it; a context manager"
    def __init__(self, name: str):
        self.lock, self.owner, self.supervisor, self.addresses = threading.Lock(), os.getpid(), None, {}
        root = tempfile.gettempdir()                      # the name of a Unix socket has at most 107 bytes
        self.folder = Path(tempfile.mkdtemp(prefix=f"{name}-", dir=root if len(root) < 50 else "/tmp"))  # mode 0700
        self.hosts = self.folder / "hosts"                # what /etc/hosts is on a machine: this one's, and a line for each machine
        self.hosts.write_text(Path("/etc/hosts").read_text() + "\n")
        for f in "log", "out": (self.folder / f).mkdir()  # the daemons' own logs; what else they print

    def __enter__(self):
        near, far = socket.socketpair()
        log = open(self.folder / "out" / "supervisor", "wb")
        self.supervisor = subprocess.Popen([sys.executable, "-I", __file__, "supervise", str(far.fileno()), str(self.folder), str(self.owner)], pass_fds=[far.fileno()],
                                           stdin=subprocess.DEVNULL, stdout=log, stderr=log, cwd="/", start_new_session=True)  # a Ctrl-C is for the owner
        far.close()
        log.close()
        near.settimeout(60)
        self.link, self.lines = near, near.makefile("r")
        self.isolated = self.ask("isolated?")
        return self

    def __exit__(self, *exc):
        "End every process, remove the folder"
        if os.getpid() != self.owner: return                              # a fork of the owner, at its end
        if self.supervisor:
            with contextlib.suppress(OSError, RuntimeError): self.ask("stop")
            self.link.close()
            self.lines.close()
            try: self.supervisor.wait(20)
            except subprocess.TimeoutExpired: self.supervisor.kill()
            self.supervisor.wait()
            self.supervisor = None
        shutil.rmtree(self.folder, ignore_errors=True)                    # if the supervisor was killed, or never came

    def ask(self, do, **more):
        "One question to the supervisor, one answer"
        with self.lock:
            self.link.sendall(json.dumps(dict(do=do, **more)).encode() + b"\n")
            if not (line := self.lines.readline()): raise RuntimeError(f"the supervisor ended\n{self.log()}")
        answer = json.loads(line)
        if "error" in answer: raise RuntimeError(answer["error"])
        return answer["answer"]

    def name(self, machine, address):
        "Let an address have a name on all machines"
        self.addresses[machine] = address
        with open(self.hosts, "a") as f: f.write(f"{address} {machine}\n")

    def start(self, machine: str, *argv, env=None, hostname=None, private={}, ready=None, seconds=20):
        "Start a machine's daemon and wait until `ready()`. With a `hostname`, and where that is possible, it has that, all machines' names, and other folders in the place of some: path -> folder"
        program = which(argv[0])
        if program is None: raise RuntimeError(f"{argv[0]} is not installed")
        pid = self.ask("start", machine=machine, argv=[program, *map(str, argv[1:])], env=dict(os.environ if env is None else env), hostname=hostname if self.isolated else None,
                       hosts=str(self.hosts), private={str(p): str(f) for p, f in private.items()}, log=str(self.folder / "out" / machine))
        end = time.monotonic() + seconds
        while ready and not ready():
            if not alive(pid): raise RuntimeError(f"{machine}: {argv[0]} ended\n{self.log(machine)}")
            if time.monotonic() > end: raise RuntimeError(f"{machine}: {argv[0]} is not ready after {seconds} s\n{self.log(machine)}")
            time.sleep(.02)
        return pid

    def up(self) -> list[str]: return self.ask("up")
    def pids(self, machine: str) -> list[int]: return self.ask("pids", machine=machine)
    def kill(self, machine: str):
        "As if its power failed: all its processes stop at once, then are killed"
        self.ask("kill", machine=machine)
    def freeze(self, machine: str):
        "All its processes stop; they keep their connections and say nothing"
        self.ask("freeze", machine=machine)
    def thaw(self, machine: str): self.ask("thaw", machine=machine)

    def login(self, hostname="login") -> list[str]:
        "What to put before a command so that it runs on a machine of its own, where the others' names are known; nothing where machines have no names"
        return [sys.executable, "-I", __file__, "enter", hostname, str(self.hosts)] if self.isolated else []

    def log(self, machine="") -> str:
        "What the daemons wrote: their logs, or what they printed if there is none"
        files = {p.name: p for folder in ("out", "log") for p in (self.folder / folder).glob(f"{machine}*")}
        return "\n".join(f"== {name}\n" + files[name].read_text(errors="replace")[-20000:] for name in sorted(files))


def listens(address, port=None):
    "Whether something accepts connections at a TCP address, or a Unix socket's path"
    with socket.socket(socket.AF_INET if port else socket.AF_UNIX) as s:
        s.settimeout(1)
        try: s.connect((address, port) if port else str(address))
        except OSError: return False
        return True


def free_ports(n: int) -> list[int]:
    "TCP ports that are free on all addresses and below those that the kernel hands out, so that no client's socket takes one in the meantime"
    low, ports = int(Path("/proc/sys/net/ipv4/ip_local_port_range").read_text().split()[0]), set()
    while len(ports) < n:
        port = 5000 + int.from_bytes(os.urandom(4), "big") % max(low - 5000, 1000)
        with socket.socket() as s, contextlib.suppress(OSError):
            s.bind(("", port))
            ports.add(port)
    return list(ports)


# --- processes

def stat(pid) -> list[str]:
    "The fields of /proc/PID/stat after the name: state, parent, ...; [] if there is no such process or only its shell"
    try: fields = Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()
    except OSError: return []
    return fields if fields[0] not in "ZX" else []


def alive(pid): return bool(stat(pid))


def below(root: int) -> list[int]:
    "All processes below one, parents first"
    children = {}
    for name in os.listdir("/proc"):
        if name.isdigit() and (f := stat(name)): children.setdefault(int(f[1]), []).append(int(name))
    found, todo = [], [root]
    while todo:
        more = children.get(todo.pop(), [])
        found += more
        todo += more
    return found


def send(pids, sig):
    for p in pids:
        with contextlib.suppress(ProcessLookupError): os.kill(p, sig)


def freeze(root: int):
    "Stop what is below a process, and what it forked in the meantime"
    seen = set()
    while new := set(below(root)) - seen:
        send(new, signal.SIGSTOP)
        seen |= new


def sweep(root: int, seconds=10):
    "Kill what is below a process until nothing is"
    end = time.monotonic() + seconds
    while (pids := below(root)) and time.monotonic() < end:
        send(pids, signal.SIGKILL)
        time.sleep(.01)


# --- the supervisor and its keepers

libc = ctypes.CDLL(None, use_errno=True)
PDEATHSIG, SUBREAPER = 1, 36                                                # prctl(2)
NEWNS, NEWUTS, NEWUSER, BIND, REC, PRIVATE = 0x20000, 0x4000000, 0x10000000, 4096, 16384, 1 << 18  # unshare(2), mount(2); os.unshare is Python 3.12's


def check(result, what):
    if result: raise OSError(ctypes.get_errno(), f"{what}: {os.strerror(ctypes.get_errno())}")


def mount(source, target, kind=None, flags=0): check(libc.mount(str(source).encode(), str(target).encode(), kind, flags, None), f"mount {source} on {target}")


def enter(hostname, hosts, private={}):
    "This process goes to a machine of its own: a hostname, /etc/hosts, and other folders in the place of some (path -> folder)"
    uid, gid = os.getuid(), os.getgid()
    check(libc.unshare(NEWNS | NEWUTS | (NEWUSER if uid else 0)), "unshare")
    if uid:                                                                 # a plain user may do the same inside a user namespace, in which it is itself
        for name, text in ("setgroups", "deny"), ("uid_map", f"{uid} {uid} 1"), ("gid_map", f"{gid} {gid} 1"): Path("/proc/self", name).write_text(text)
    mount("none", "/", flags=REC | PRIVATE)
    mount(hosts, "/etc/hosts", flags=BIND)
    for path, folder in private.items(): mount(folder, path, flags=BIND)
    check(libc.sethostname(hostname.encode(), len(hostname)), "sethostname")


def isolated(hosts) -> bool:
    "Whether `enter` works here; it does not in an ordinary Docker container"
    if (pid := os.fork()) == 0:
        with contextlib.suppress(BaseException):
            enter("probe", hosts)
            os._exit(0)
        os._exit(1)
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0


def keep(said, parent, argv, env, log, hostname, hosts, private):
    "The keeper of one machine: start the daemon, say its pid, wait for the end"
    def leave(*_):
        sweep(os.getpid())
        os._exit(0)
    check(libc.prctl(SUBREAPER, 1, 0, 0, 0), "prctl")
    if hostname: enter(hostname, hosts, private)
    signal.signal(signal.SIGTERM, leave)
    libc.prctl(PDEATHSIG, signal.SIGTERM, 0, 0, 0)                          # after `enter`: a change of credentials clears it
    if os.getppid() != parent: leave()
    keeper = os.getpid()
    if (pid := os.fork()) == 0:
        for s in signal.SIGTERM, signal.SIGCHLD, signal.SIGPIPE: signal.signal(s, signal.SIG_DFL)
        libc.prctl(PDEATHSIG, signal.SIGKILL, 0, 0, 0)
        if os.getppid() != keeper: os._exit(1)
        os.setsid()
        out = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
        for fd in 1, 2: os.dup2(out, fd)
        os.execve(argv[0], argv, env)
    os.write(said, str(pid).encode())
    os.close(said)
    while True: signal.pause()


class Supervisor:
    "The parent of all keepers"
    def __init__(self, link, folder): self.link, self.folder, self.keepers = link, folder, {}

    def run(self, owner):
        for s in signal.SIGINT, signal.SIGHUP, signal.SIGTERM: signal.signal(s, lambda *_: sys.exit(0))
        check(libc.prctl(SUBREAPER, 1, 0, 0, 0), "prctl")
        try:
            owner_ends = os.pidfd_open(owner)   # not only the end of the link: a fork of the owner may hold that open
            if os.getppid() != owner: return
            lines = b""
            while True:
                ready, _, _ = select.select([self.link, owner_ends], [], [])
                if owner_ends in ready: return
                if not (data := self.link.recv(65536)): return
                lines += data
                while b"\n" in lines:
                    line, _, lines = lines.partition(b"\n")
                    question = json.loads(line)
                    try: answer = dict(answer=self.answer(**question))
                    except (OSError, RuntimeError) as e: answer = dict(error=str(e))
                    if question["do"] == "stop": self.clean()
                    self.link.sendall(json.dumps(answer).encode() + b"\n")
        except BrokenPipeError: pass            # the owner ended while it was answered
        finally: self.clean()

    def clean(self):
        sweep(os.getpid())
        shutil.rmtree(self.folder, ignore_errors=True)

    def answer(self, do, machine=None, **more):
        self.keepers = {m: k for m, k in self.keepers.items() if alive(k)}
        if do == "stop": return None
        if do == "up": return list(self.keepers)
        if do == "isolated?": return isolated(Path(self.folder, "hosts"))
        signal.signal(signal.SIGCHLD, signal.SIG_IGN)   # from here on the kernel collects what ends, orphans too
        if do == "start": return self.start(machine, **more)
        if (keeper := self.keepers.get(machine)) is None:
            if do == "kill": return None
            raise RuntimeError(f"{machine} is not up")
        if do == "pids": return below(keeper)
        if do == "freeze": return freeze(keeper)
        if do == "thaw": return send(below(keeper), signal.SIGCONT)
        if do == "kill":
            freeze(keeper)                              # first, so that none sees another die and says so
            sweep(keeper)
            send([keeper], signal.SIGKILL)
            while alive(keeper): time.sleep(.005)
            return None
        raise RuntimeError(f"what is {do}?")

    def start(self, machine, **more):
        if machine in self.keepers: raise RuntimeError(f"{machine} is up")
        r, w = os.pipe()
        parent = os.getpid()
        if (pid := os.fork()) == 0:
            try: keep(w, parent, **more)
            except BaseException as e: os.write(w, f"{type(e).__name__}: {e}".encode())
            finally: os._exit(1)
        os.close(w)
        with os.fdopen(r) as f: said = f.read()
        if not said.isdigit(): raise RuntimeError(f"{machine} did not start: {said}")
        self.keepers[machine] = pid
        return int(said)


if __name__ == "__main__":
    if sys.argv[1] == "supervise": Supervisor(socket.socket(fileno=int(sys.argv[2])), sys.argv[3]).run(int(sys.argv[4]))
    else:
        enter(*sys.argv[2:4])
        os.execvp(sys.argv[4], sys.argv[4:])
