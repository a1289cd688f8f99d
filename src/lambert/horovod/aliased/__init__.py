"""A folder for PYTHONPATH: in it, `horovod` is `lambert.horovod`. `lambert horovodrun --alias` puts it there."""
