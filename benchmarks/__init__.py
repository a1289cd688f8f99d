"""What Lambert claims, measured: one folder a claim. Run from the root: `python -m benchmarks.CLAIM.run`."""
