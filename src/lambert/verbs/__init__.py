"""One file per verb: its settings at the top, one function below."""
