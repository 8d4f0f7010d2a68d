"""A real Slurm, private and thrown away: `with Cluster() as c: c.run("srun", "-N2", "hostname")`.

Everything (configuration, munge's key and socket, logs, state, database) is in one folder of mode 0700, and nothing in /etc is read for configuration or written.
All daemons listen on the loopback only, or without namespaces on the address that this machine's hostname has; a running srun listens on all addresses, as everywhere (munge guards it). Runs as root or as a plain user, any number at once.
Tested with Debian 12's Slurm 22.05.8; comments name the quirks of that version."""
import contextlib, getpass, os, secrets, socket, subprocess, time
from pathlib import Path

from .machines import Machines, alive, free_ports, listens, which

PROGRAMS = dict(slurmctld="slurm-wlm", slurmd="slurm-wlm", sbatch="slurm-wlm", munged="munge")  # program -> Debian's package
ACCOUNTING = dict(slurmdbd="slurmdbd", mariadbd="mariadb-server-core")
ACCOUNTING["mariadb-install-db"], ACCOUNTING["my_print_defaults"] = "mariadb-server-core", "mariadb-client-core"
MINE = ("SLURM", "SBATCH", "SALLOC", "SRUN", "SQUEUE", "SINFO", "SACCT")  # variables that change what Slurm's commands do


def missing(accounting=False) -> str:
    "What to install, if something is missing: the reason of a skip"
    packages = {package for program, package in (PROGRAMS | (ACCOUNTING if accounting else {})).items() if not which(program)}
    return f"apt-get install --no-install-recommends {' '.join(sorted(packages))}" if packages else ""


def lines(settings: dict) -> str: return "".join(f"{k}={v}\n" for k, v in settings.items())


def slurm_conf(folder, host, address, port, nodes, user, gpus, accounting_port, preempt_signal, grace, more) -> str:
    "slurm.conf, which all share; `nodes` are its NodeName lines without the word"
    names = ",".join(n.split()[0] for n in nodes)
    settings = dict(
        ClusterName="dtnb", SlurmctldHost=f"{host}({address})", SlurmctldPort=port, SlurmUser=user, SlurmdUser=user,
        AuthType="auth/munge", CredType="cred/munge",
        AuthInfo=f"socket={folder}/munge/socket,cred_expire=5",         # also the time that a requeued job waits, else 120 s
        CommunicationParameters="NoCtldInAddrAny",                      # the controller listens on its host's address only; for slurmd see start_node
        DebugFlags="NO_CONF_HASH",                                      # slurmd's file differs from the others' by intent
        StateSaveLocation=f"{folder}/state", SlurmdSpoolDir=f"{folder}/spool/%n", SlurmctldPidFile=f"{folder}/slurmctld.pid", SlurmdPidFile=f"{folder}/%n.pid",
        SlurmctldLogFile=f"{folder}/log/slurmctld", SlurmdLogFile=f"{folder}/log/%n", PlugStackConfig=f"{folder}/plugstack.conf", MailProg="/bin/true",
        ProctrackType="proctrack/linuxproc", TaskPlugin="task/none",    # cgroups need systemd, or rights that a container has not
        JobAcctGatherType="jobacct_gather/linux", JobAcctGatherFrequency="task=1",
        AccountingStorageType="accounting_storage/none", MpiDefault="none",
        SlurmdParameters="config_overrides", ReturnToService=1,         # nodes have what we say that they have; one that was silent comes back by itself, one that the operator took out does not
        GresTypes="gpu", SelectType="select/cons_tres", SelectTypeParameters="CR_Core",
        SchedulerType="sched/backfill", SchedulerParameters="batch_sched_delay=0,sched_interval=1,bf_interval=1,bf_continue",
        PriorityType="priority/multifactor", PreemptType="preempt/partition_prio", PreemptMode="REQUEUE", JobRequeue=1,
        FirstJobId=100 * (1 + secrets.randbelow(900)),                  # job ids of clusters differ: some take a port from it
        KillWait=5, SlurmdTimeout=10, SlurmctldTimeout=10, MessageTimeout=10)
    if preempt_signal: settings["SlurmctldParameters"] = "preempt_send_user_signal"
    if accounting_port:
        settings |= dict(AccountingStorageType="accounting_storage/slurmdbd", AccountingStorageHost=address, AccountingStoragePort=accounting_port,
                         AccountingStoragePass=f"{folder}/munge/socket", AccountingStorageTRES="gres/gpu",
                         AccountingStorageEnforce="associations,limits,qos")  # so that an unknown --account is refused, as sites do
    # `main` and `low` have one tier, or `main` would preempt `low` too
    partitions = (f"PartitionName=main Nodes={names} Default=YES DefaultTime=60 MaxTime=1-0 PriorityTier=1 PreemptMode=OFF\n"
                  f"PartitionName=low Nodes={names} DefaultTime=60 MaxTime=7-0 PriorityTier=1 PreemptMode=REQUEUE GraceTime={grace}\n"
                  f"PartitionName=high Nodes={names} DefaultTime=60 MaxTime=60 PriorityTier=100 PreemptMode=OFF\n")
    return lines(settings | more) + "".join(f"NodeName={n}\n" for n in nodes) + partitions


def slurmdbd_conf(folder, host, address, port, user) -> str:
    return lines(dict(AuthType="auth/munge", AuthInfo=f"socket={folder}/munge/socket", DbdHost=host, DbdAddr=address, DbdPort=port, SlurmUser=user,
                      CommunicationParameters="NoInAddrAny", LogFile=f"{folder}/log/slurmdbd", PidFile=f"{folder}/slurmdbd.pid",
                      StorageType="accounting_storage/mysql", StorageHost="localhost", StorageUser="root", StorageLoc="slurm", CommitDelay=0))


class Cluster:
    """A Slurm of `nodes` nodes, each with `cpus` CPUs, `gpus` GPUs and `memory` MB, all of them pretended, and three partitions: `main` (the default), `low`, whose jobs are
    requeued when `high` wants their place, and `high`. With `grace` (seconds) those are told first, by SIGTERM or with `preempt_signal` by their own --signal; and go up to 30 s
    later than that, because this is how often the controller looks.

    Nodes are called node1, node2, ... and have these hostnames, where the kernel lets us (root, or a plain user's namespaces; not in an ordinary Docker container);
    else, or with `namespaces=False`, they are called 127.0.x.1, ... and the hostname is this machine's. `accounting` adds slurmdbd and its database: sacct, sacctmgr,
    and an account `lab`. `private` names folders that each node has for itself, such as /dev/shm (needs namespaces). `conf` overrides what slurm.conf says."""
    def __init__(self, nodes=2, cpus=4, gpus=2, memory=4000, accounting=False, preempt_signal=False, grace=0, namespaces=True, private=(), conf={}):
        self.options = dict(count=nodes, cpus=cpus, gpus=gpus, memory=memory, accounting=accounting, preempt_signal=preempt_signal, grace=grace, conf=dict(conf))
        self.accounting, self.namespaces, self.private, self.machines = accounting, namespaces, private, None

    def __enter__(self): return self.start()
    def __exit__(self, *exc): self.stop()

    def start(self):
        if reason := missing(self.accounting): raise RuntimeError(f"Slurm is not installed: {reason}")
        self.machines = Machines("slurm")
        try:
            self.machines.__enter__()
            self.machines.isolated &= self.namespaces
            self.isolated, self.folder = self.machines.isolated, self.machines.folder
            self.env = {k: v for k, v in os.environ.items() if not k.startswith(MINE)} | dict(SLURM_CONF=f"{self.folder}/slurm.conf")
            self._configure(**self.options)
            self._start_munge()
            if self.accounting: self._start_accounting()
            self.start_controller()
            for n in self.nodes: self.start_node(n)
            self._wait(lambda: {self.node_state(n) for n in self.nodes} == {"IDLE"}, 30, "idle nodes")
        except BaseException:
            self.stop()
            raise
        return self

    def stop(self):
        "End all daemons and jobs, remove the folder"
        if self.machines: self.machines.__exit__()

    # --- what the daemons read

    def _configure(self, count, cpus, gpus, memory, accounting, preempt_signal, grace, conf):
        f, net, user = self.folder, 1 + secrets.randbelow(250), getpass.getuser()
        addresses = [f"127.0.{net}.{i + 1}" for i in range(count)]
        self.controller_port, self.accounting_port, *self.ports = free_ports(count + 2)
        if self.isolated:
            self.nodes, self.host, self.address = [f"node{i + 1}" for i in range(count)], "login", "127.0.0.1"
            self.listen = addresses
            self.machines.name("login", "127.0.0.1")
            for n, a in zip(self.nodes, addresses): self.machines.name(n, a)
        else:                                                           # all daemons have this machine's hostname, and listen where that leads
            self.nodes, self.host = addresses, socket.gethostname().split(".")[0]
            self.address = socket.gethostbyname(self.host)
            self.listen = [self.address] * count
        self.addresses = dict(zip(self.nodes, addresses))
        for folder in "munge", "state", "spool", "gpus", "private": (f / folder).mkdir()
        for n in self.nodes: (f / "spool" / n).mkdir()
        for i in range(gpus): (f / "gpus" / f"gpu{i}").symlink_to("/dev/null")   # any device does; without a file Slurm counts none and drains the node
        gres = f" Gres=gpu:{gpus}" if gpus else ""
        nodes = [f"{n} NodeHostname={n if self.isolated else self.host} NodeAddr={a} Port={p} CPUs={cpus} Boards=1 SocketsPerBoard=1 CoresPerSocket={cpus} ThreadsPerCore=1 "
                 f"RealMemory={memory}{gres} State=UNKNOWN" for n, a, p in zip(self.nodes, self.listen, self.ports)]
        self.slurm_conf = slurm_conf(f, self.host, self.address, self.controller_port, nodes, user, gpus, self.accounting_port if accounting else None, preempt_signal, grace, conf)
        files = {"slurm.conf": self.slurm_conf, "plugstack.conf": "",
                 "gres.conf": f"Name=gpu File={f}/gpus/gpu[0-{gpus - 1}]\n" if gpus > 1 else f"Name=gpu File={f}/gpus/gpu0\n" if gpus else ""}
        # no plugin of ours uses cgroups, yet slurmd looks for them: v2 wants systemd
        version = tuple(map(int, subprocess.run([which("slurmd"), "-V"], capture_output=True, text=True, check=True).stdout.split()[-1].split(".")[:2]))
        files["cgroup.conf"] = "CgroupPlugin=disabled\n" if version >= (23, 11) else "CgroupPlugin=cgroup/v1\n"
        if accounting: files["slurmdbd.conf"] = slurmdbd_conf(f, self.host, self.address, self.accounting_port, user)
        for name, text in files.items():
            (f / name).write_text(text)
            (f / name).chmod(0o600)                                     # slurmdbd insists
        for n in self.nodes:
            (f / "conf" / n).mkdir(parents=True)
            for name in "gres.conf", "cgroup.conf", "plugstack.conf": (f / "conf" / n / name).symlink_to(f / name)

    # --- daemons

    def _start_munge(self):
        f = self.folder / "munge"
        (f / "key").write_bytes(secrets.token_bytes(128))
        (f / "key").chmod(0o600)
        # --force: it complains that others can't reach its socket, and they shouldn't
        self.machines.start("munged", "munged", "--foreground", "--force", f"--key-file={f}/key", f"--socket={f}/socket", f"--pid-file={f}/pid", f"--log-file={f}/log", f"--seed-file={f}/seed",
                            "--num-threads=2", ready=lambda: (f / "socket").exists())

    def _start_accounting(self):
        data, sock, root = self.folder / "db", self.folder / "db.socket", ["--user=root"] if os.getuid() == 0 else []
        small = ["--innodb-log-file-size=4M", "--innodb-buffer-pool-size=32M"]
        subprocess.run([which("mariadb-install-db"), "--no-defaults", f"--datadir={data}", "--skip-test-db", "--skip-name-resolve", "--auth-root-authentication-method=normal", *small[:1], *root],
                       stdin=subprocess.DEVNULL, capture_output=True, check=True, timeout=60)
        self.machines.start("mariadbd", "mariadbd", "--no-defaults", f"--datadir={data}", f"--socket={sock}", f"--pid-file={data}/pid", "--skip-networking", "--innodb-flush-log-at-trx-commit=0",
                            "--innodb-lock-wait-timeout=900", "--performance-schema=OFF", *small, *root, ready=lambda: listens(sock))
        self.machines.start("slurmdbd", "slurmdbd", "-D", env=self.env | dict(MYSQL_UNIX_PORT=str(sock)), hostname="login", ready=lambda: listens(self.address, self.accounting_port))
        self.run("sacctmgr", "-i", "add", "cluster", "dtnb")
        self.run("sacctmgr", "-i", "add", "account", "lab", "Description=lab", "Organization=lab")
        self.run("sacctmgr", "-i", "add", "user", getpass.getuser(), "Account=lab", "DefaultAccount=lab")

    def start_controller(self):
        "The controller comes up, and knows again the nodes that are up: that takes it 5 s. Steps that a job starts before (22.05) wait for a minute or more"
        self.controller = self.machines.start("slurmctld", "slurmctld", "-D", env=self.env, hostname="login", ready=lambda: listens(self.address, self.controller_port))

        for n in set(self.nodes) & set(self.machines.up()):
            self._wait(lambda: self._node(n)["SlurmdStartTime"] != "None", 30, f"registration of {n}")

    def stop_controller(self, crash=False):
        "The controller goes; jobs run on. It saves its state, unless it crashes"
        if not crash:
            os.kill(self.controller, 15)
            self._wait(lambda: not alive(self.controller), 10, "slurmctld's end")
        self.machines.kill("slurmctld")

    def start_node(self, node):
        "Boot a node"
        i, file = self.nodes.index(node), self.folder / "conf" / node / "slurm.conf"
        # Only slurmd may have NoInAddrAny. srun must listen everywhere: steps call it back at the address its connection came from, which on the loopback is
        # always 127.0.0.1. But slurmd hands the name of its own file on to jobs, as SLURM_CONF: once it listens that name leads to the file of all.
        file.unlink(missing_ok=True)
        file.write_text(self.slurm_conf.replace("=NoCtldInAddrAny", "=NoCtldInAddrAny,NoInAddrAny"))
        private = {}
        for k, path in enumerate(self.private):
            private[path] = self.folder / "private" / f"{node}-{k}"
            private[path].mkdir(exist_ok=True)
        self.machines.start(node, "slurmd", "-D", "-f", file, "-N", node, env=self.env, hostname=node, private=private, ready=lambda: listens(self.listen[i], self.ports[i]))
        (new := file.with_suffix(".new")).symlink_to(self.folder / "slurm.conf")
        new.replace(file)

    def kill_node(self, node):
        "A node's power fails: slurmd, steps and tasks are gone at once. The controller sees it after SlurmdTimeout, up to 30 s"
        self.machines.kill(node)
    def freeze_node(self, node):
        "A node hangs: its processes stop, its connections stay"
        self.machines.freeze(node)
    def thaw_node(self, node): self.machines.thaw(node)
    def node_pids(self, node) -> list[int]:
        "All processes of a node"
        return self.machines.pids(node)
    def node_down(self, node, reason="test"):
        "The operator takes a node out: its jobs end or are requeued at once"
        self.run("scontrol", "update", f"NodeName={node}", "State=DOWN", f"Reason={reason}")
    def node_up(self, node): self.run("scontrol", "update", f"NodeName={node}", "State=RESUME")

    # --- what a user does

    @property
    def login(self) -> list[str]:
        "To put before a command that shall run on the login node, where the nodes' names are known; nothing where nodes have no names"
        return self.machines.login()

    def run(self, *argv, check=True, timeout=60, **more) -> subprocess.CompletedProcess:
        "A command with the cluster's environment; what it says is text"
        if "input" not in more: more["stdin"] = subprocess.DEVNULL
        p = subprocess.run([str(a) for a in argv], **dict(env=self.env, capture_output=True, text=True, timeout=timeout) | more)
        if check and p.returncode: raise RuntimeError(f"{' '.join(map(str, argv))}: {p.returncode}\n{p.stdout}{p.stderr}")
        return p

    def submit(self, script: str, *options) -> str:
        "The job id of a batch script, or of a bash command, whose output goes nowhere unless an option says where"
        return self.run("sbatch", "--parsable", *options, input=script if script.startswith("#!") else f"#!/bin/bash\n#SBATCH --output=/dev/null\n{script}\n").stdout.strip()

    def state(self, job) -> str:
        "PENDING, RUNNING, COMPLETED, ...; empty if the controller knows no such job"
        return self.run("squeue", "-h", "-t", "all", "-j", job, "-o", "%T", check=False).stdout.strip()

    def node_state(self, node) -> str:
        "IDLE, MIXED, ALLOCATED, DOWN, ..., with flags such as +NOT_RESPONDING or +DRAIN. Not from sinfo: 22.05 goes on to say mixed for idle and down nodes after the controller came back"
        return self._node(node)["State"]

    def _node(self, node) -> dict: return dict(word.split("=", 1) for word in self.run("scontrol", "-o", "show", "node", node).stdout.split() if "=" in word)

    def wait(self, job, *states, seconds=30) -> str:
        "Until a job is in one of the states"
        return self._wait(lambda: (s if (s := self.state(job)) in states else ""), seconds, f"job {job} in {' or '.join(states)}")

    def _wait(self, true, seconds, what):
        end = time.monotonic() + seconds
        while not (got := true()):
            if time.monotonic() > end: raise TimeoutError(f"no {what} in {seconds} s\n{self.log()}")
            time.sleep(.05)
        return got

    def log(self) -> str:
        "What the daemons wrote"
        return self.machines.log()
