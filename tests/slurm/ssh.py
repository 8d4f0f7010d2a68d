"""Hosts that one reaches by ssh, private and thrown away: `with SSH() as s: s.run("n1", "hostname")`, or `ssh -F config n1`.

Each is an sshd of its own on the loopback, with keys and configuration in one private folder: this user's keys and ~/.ssh are neither read nor written."""
import getpass, os, secrets, subprocess
from pathlib import Path

from .machines import Machines, free_ports, listens, which


def missing() -> str:
    "What to install, if something is missing: the reason of a skip"
    return "" if which("sshd") and which("ssh") else "apt-get install --no-install-recommends openssh-server openssh-client"


class SSH:
    "`count` hosts, called n1, n2, ...; with hostnames of their own where the kernel lets us (as `Cluster`). `config` is for `ssh -F`"
    def __init__(self, count=2): self.hosts, self.machines = [f"n{i + 1}" for i in range(count)], None

    def __enter__(self):
        if reason := missing(): raise RuntimeError(f"sshd is not installed: {reason}")
        self.machines = Machines("ssh")
        try:
            self.machines.__enter__()
            self._configure()
            for n in self.hosts: self.start(n)
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *exc):
        if self.machines: self.machines.__exit__()

    def _configure(self):
        f, net = self.machines.folder, 1 + secrets.randbelow(250)
        self.config, self.addresses, self.ports = f / "config", {}, dict(zip(self.hosts, free_ports(len(self.hosts))))
        for key in "host_key", "user_key": subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-C", "test", "-f", f / key], stdin=subprocess.DEVNULL, check=True)
        public, aliases, known = (f / "host_key.pub").read_text(), "", ""
        for i, (n, port) in enumerate(self.ports.items()):
            a = self.addresses[n] = f"127.0.{net}.{i + 1}"
            self.machines.name(n, a)
            # no PAM: only root could use it; StrictModes would look at whose /tmp is; at level 2 bash doesn't read this user's ~/.bashrc, which may be slow or hold locks
            (f / f"sshd-{n}").write_text(f"ListenAddress {a}\nPort {port}\nHostKey {f}/host_key\nAuthorizedKeysFile {f}/user_key.pub\nPidFile none\nUsePAM no\nStrictModes no\n"
                                         "PasswordAuthentication no\nKbdInteractiveAuthentication no\nPermitRootLogin prohibit-password\nSetEnv SHLVL=2\nMaxStartups 100\nUseDNS no\n")
            aliases += f"Host {n}\n  HostName {a}\n  Port {port}\n"
            known += f"[{a}]:{port} {public}"
        (f / "known_hosts").write_text(known)
        self.config.write_text(f"{aliases}Host *\n  User {getpass.getuser()}\n  IdentityFile {f}/user_key\n  IdentitiesOnly yes\n  UserKnownHostsFile {f}/known_hosts\n"
                               "  GlobalKnownHostsFile /dev/null\n  StrictHostKeyChecking yes\n  BatchMode yes\n  LogLevel ERROR\n")

    def start(self, host):
        "Boot a host"
        # As root sshd wants /run/sshd, which its service would have made; here each host has a /run of its own
        private = {}
        if os.getuid() == 0 and self.machines.isolated:
            private["/run"] = self.machines.folder / f"run-{host}"
            (private["/run"] / "sshd").mkdir(parents=True, exist_ok=True)
        elif os.getuid() == 0: Path("/run/sshd").mkdir(mode=0o755, exist_ok=True)
        self.machines.start(host, "sshd", "-D", "-e", "-f", self.machines.folder / f"sshd-{host}", hostname=host, private=private, ready=lambda: listens(self.addresses[host], self.ports[host]))

    def kill(self, host):
        "A host's power fails"
        self.machines.kill(host)

    def pids(self, host) -> list[int]: return self.machines.pids(host)

    def run(self, host, *words, check=True, timeout=60, **more) -> subprocess.CompletedProcess:
        "A command on a host, as its shell reads it"
        return subprocess.run(["ssh", "-F", str(self.config), host, *words], **dict(stdin=subprocess.DEVNULL, capture_output=True, text=True, check=check, timeout=timeout) | more)

    def log(self) -> str: return self.machines.log()
