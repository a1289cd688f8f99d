"""Runs a model over texts, for finetune, evaluate, predict and the library."""
