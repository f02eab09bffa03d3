"""A simulated cluster: virtual time, network, membership, replay."""
