"""A folder for PYTHONPATH in which `horovod` is `lambert.horovod`. `lambert horovodrun --alias` adds the folder."""
