"""TensorFlow's checkpoints, read without TensorFlow: a table of names, and files of data."""
