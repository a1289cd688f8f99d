#!/bin/bash
# Starts Lambert with torchrun, for sites that require it. `lambert launch` needs none of the settings below.
#
#   deploy/torchrun.sh pretrain recipe.toml                                one process per GPU of this machine
#   PROCESSES=4 deploy/torchrun.sh pretrain recipe.toml                    four processes; required without a GPU
#   NODES=2 HEAD=node1:29500 deploy/torchrun.sh pretrain recipe.toml       on each of two machines
#
# RESTARTS is the number of times that a failed group is restarted (default 3). If several groups use the same HEAD,
# each needs its own name in RUN.
#
# torchrun differs from `lambert launch` in four ways: its exit code is 1 after every failure; it also restarts after
# errors that a restart cannot fix; its processes continue to run if it is killed; and it prints a long report of its
# own after Lambert's error message of one line.
set -eu
export TORCH_DISABLE_SHARE_RDZV_TCP_STORE=1 # otherwise a machine that returns cannot join again: pytorch#135712

if [ "${PROCESSES:-gpu}" = gpu ] && ! python -c 'import sys, torch; sys.exit(not torch.cuda.is_available())'; then
    echo "torchrun.sh: torch finds no GPU here: say how many processes, as in PROCESSES=2 $0 $*" >&2
    exit 2
fi
exec torchrun \
    --nnodes "${NODES:-1}" --nproc-per-node "${PROCESSES:-gpu}" --max-restarts "${RESTARTS:-3}" \
    --rdzv-backend c10d --rdzv-endpoint "${HEAD:-localhost:0}" --rdzv-id "${RUN:-lambert}" \
    --rdzv-conf keep_alive_interval=1,keep_alive_max_attempt=3,last_call_timeout=3,join_timeout=600 \
    --monitor-interval 0.1 --shutdown-timeout 60 --signals-to-handle SIGTERM,SIGINT,SIGHUP,SIGQUIT,SIGUSR1 \
    -m lambert "$@"
