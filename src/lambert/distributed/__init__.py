"""Training with several processes: rendezvous, gradient exchange, failure detection and restarts of the workers."""
