#!/bin/sh
# Scores of one encoder fine-tuned with several learning rates.
#
#   sh benchmarks/fine_tuning_rates/measure.sh ENCODER TRAIN DEV OUT LR...
encoder=$1 train=$2 dev=$3 out=$4
shift 4
for lr in "$@"; do
    lambert finetune --init "$encoder" --data "$train" --dev "$dev" --out "$out/$lr" \
        --optim.name adamw --optim.lr "$lr" --optim.warmup-ratio 0.1 --train.batch-size 16 --train.steps 64 \
        --task.max-length 24 --train.threads 1 --log.no-console
    echo "lr $lr $(tr -d '\n' < "$out/$lr/scores.json")"
done
