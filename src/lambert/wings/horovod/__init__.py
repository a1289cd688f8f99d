"""Horovod's API on `torch.distributed`, and its launcher. Users import `lambert.horovod`."""
