"`python -m slurm`: a Slurm to try things by hand, for as long as a shell or a command runs"
import argparse, os, signal, subprocess, sys, time
from pathlib import Path

from .cluster import Cluster, missing

p = argparse.ArgumentParser(prog="python -m slurm", description="Run a command, or a shell, on the login node of a private Slurm that ends with it.")
for name, value, what in ("nodes", 2, "nodes"), ("cpus", 4, "CPUs a node, pretended"), ("gpus", 2, "GPUs a node, pretended"): p.add_argument(f"--{name}", type=int, default=value, help=f"{what} ({value})")
p.add_argument("--accounting", action="store_true", help="sacct and sacctmgr (needs a database)")
p.add_argument("--preempt-signal", action="store_true", help="a preempted job gets its own --signal")
p.add_argument("--plain", action="store_true", help="nodes without hostnames of their own")
p.add_argument("command", nargs=argparse.REMAINDER, help="a shell, if there is none")
a = p.parse_args()
if reason := missing(a.accounting): sys.exit(f"Slurm is not installed: {reason}")

begin = time.monotonic()
signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
with Cluster(a.nodes, a.cpus, a.gpus, accounting=a.accounting, preempt_signal=a.preempt_signal, namespaces=not a.plain) as c:
    if not a.command: print(f"Slurm is up in {time.monotonic() - begin:.1f} s: {' '.join(c.nodes)}, partitions main, low and high. Try: sinfo; srun -N2 hostname; sbatch --wrap 'sleep 60'; squeue.\n"
                            f"`exit` ends it. In another shell: export SLURM_CONF={c.env['SLURM_CONF']}", flush=True)
    env = c.env | dict(PATH=f"{Path(sys.executable).parent}{os.pathsep}{c.env.get('PATH', os.defpath)}")  # the virtual environment of this Python
    command = subprocess.Popen([*c.login, *(a.command or [os.environ.get("SHELL", "bash")])], env=env)
    signal.signal(signal.SIGINT, signal.SIG_IGN)   # a Ctrl-C is for what runs in there
    code = command.wait()
sys.exit(code if code >= 0 else 128 - code)
