"""Real processes: launcher, fork server, hosts, torchrun and Slurm, membership, fault injection."""
