"""The settings of the verbs that run models. No module here imports torch, so a mistyped flag is answered at once."""
