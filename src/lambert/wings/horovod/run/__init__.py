"""`lambert horovodrun`: starts a command once per rank, on this host and over ssh, with Horovod's options."""

from collections.abc import Sequence

from lambert.wings.horovod.run import job
from lambert.wings.horovod.run.options import is_elastic, parse


def main(arguments: Sequence[str]) -> int:
    """Runs `horovodrun` with these arguments.

    Returns:
        The exit code: 0, or the code of the rank that failed first; 130 after Ctrl-C and 143 after SIGTERM, when all
        ranks have ended.

    Raises:
        UsageError: The arguments are invalid.
        DataError: A file or script that the arguments name cannot be used.
    """
    args = parse(arguments)
    if args.version:
        from lambert.core.version import __version__

        print(__version__)
        return 0
    if args.check_build:
        print(describe_build())
        return 0
    try:
        if not is_elastic(args):
            return job.run(args)
        from lambert.wings.horovod.run import elastic

        return elastic.run(args)
    except job.Stop as stop:
        return 128 + stop.number


def describe_build() -> str:
    """Returns the capabilities of this installation, in the format of `horovodrun --check-build`."""
    import torch.distributed

    from lambert.core.version import __version__

    nccl = "X" if torch.distributed.is_nccl_available() and torch.cuda.is_available() else " "
    return (
        f"Lambert v{__version__}, the Horovod API on torch {torch.__version__}:\n\n"
        "Available Frameworks:\n    [ ] TensorFlow\n    [X] PyTorch\n    [ ] MXNet\n\n"
        "Available Controllers:\n    [ ] MPI\n    [X] Gloo\n\n"
        f"Available Tensor Operations:\n    [{nccl}] NCCL\n    [ ] DDL\n    [ ] CCL\n    [ ] MPI\n    [X] Gloo"
    )
