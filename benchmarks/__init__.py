"""What Lambert claims, measured: a folder for each claim. Run from the root: `python -m benchmarks.CLAIM.run`."""
