"""A model over texts: what finetune, evaluate, predict and the library share."""
