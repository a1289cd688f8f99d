"""Lambert: pre-train and fine-tune BERT-family encoders, from raw text to an answer."""

__version__ = "0.1.0"
