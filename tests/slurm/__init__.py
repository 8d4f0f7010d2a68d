"Real clusters for tests and lessons, private and thrown away: Slurm, and hosts that one reaches by ssh."
from .cluster import Cluster
from .ssh import SSH
