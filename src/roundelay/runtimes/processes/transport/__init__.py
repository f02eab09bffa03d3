"""Messages and collectives between processes: gloo, shared memory, key-value store."""
