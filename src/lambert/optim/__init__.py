"""Gradients to updates. Read in this order: lamb, groups, schedule, optimizers."""
