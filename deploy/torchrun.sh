#!/bin/bash
# torch's own launcher, for where it is expected, with the settings that `lambert launch` makes by itself.
#
#   deploy/torchrun.sh pretrain recipe.toml                                  a process a GPU of this machine
#   PROCESSES=4 deploy/torchrun.sh pretrain recipe.toml                      four processes; without a GPU it must be set
#   NODES=2 HEAD=node1:29500 deploy/torchrun.sh pretrain recipe.toml         on each of two machines
#
# RESTARTS is how often the group is started again (3), RUN a name of its own where several groups share a HEAD.
# Against `lambert launch`: it exits with 1 whatever happened, tries again where that is in vain, its processes live on
# when it is killed, and under the line of Lambert that says what was wrong it reports in many of its own.
set -eu
export TORCH_DISABLE_SHARE_RDZV_TCP_STORE=1 # or a machine that comes back is never let in: pytorch#135712

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
