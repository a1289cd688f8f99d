"""Measures a device: its ceilings, and a training step on random batches."""
