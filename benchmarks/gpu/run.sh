#!/usr/bin/env bash
# The whole table of one GPU in under ten minutes: tests that need it, training, inference, optimizers, traces.
#
#   bash benchmarks/gpu/run.sh                               # results in benchmarks/gpu/<device>/
#   DEVICE=cpu SIZE=tiny ROUNDS=1 bash benchmarks/gpu/run.sh # proves the script where there is no GPU
#
#   OUT      folder of the results       ROUNDS  rounds of each side (7)
#   PYTHON   interpreter (python3)       LIMIT   seconds for everything (570); what is left then is skipped, and said
#   WHEELS   folder of wheels for packages that are missing where there is no network (wheels)
#   TESTS    0 leaves out the tests
#   TOKENS   tokens of a round, by the GPU's memory where not given: real ones from 130 GiB on, else with padding
set -uo pipefail
cd "$(dirname "$0")/../.."
export PYTHONPATH="$PWD/src${PYTHONPATH:+:$PYTHONPATH}" PYTHONUNBUFFERED=1
PYTHON=${PYTHON:-python3} DEVICE=${DEVICE:-cuda} ROUNDS=${ROUNDS:-7} LIMIT=${LIMIT:-570} WHEELS=${WHEELS:-wheels}
BASE=${SIZE:-base} LARGE=${SIZE:-large}
MODERN=${BASE/tiny/mini} # the smallest ModernBERT

if compgen -G "$WHEELS/*.whl" >/dev/null; then
    site=$(mktemp -d)
    trap 'rm -rf "$site"' EXIT
    "$PYTHON" -m pip install -q --no-index --no-deps --no-compile --target "$site" "$WHEELS"/*.whl || exit 2
    export PYTHONPATH="$PYTHONPATH:$site"
fi
"$PYTHON" - <<'END' || exit 2
import importlib.util, sys
needed = "torch numpy cyclopts docstring_parser rich rich_rst sentencex tokenizers safetensors tomli_w psutil"
needed += " transformers pytest pytest_timeout hypothesis"
missing = [name for name in needed.split() if importlib.util.find_spec(name) is None]
if missing:
    sys.exit(f"missing: {' '.join(missing)}. Without a network, put wheels into a folder: benchmarks/gpu/README.md.")
END
read -r NAME MEMORY FLOAT8 < <("$PYTHON" - "$DEVICE" <<'END'
import re, sys, torch
if sys.argv[1] == "cpu":
    print("cpu", 0, 0)
elif not torch.cuda.is_available():
    print("none", 0, 0)
else:
    found = torch.cuda.get_device_properties(sys.argv[1])
    print(re.sub(r"\W+", "-", found.name.lower()), found.total_memory // 2**30,
          int(torch.cuda.get_device_capability(sys.argv[1]) >= (8, 9)))
END
)
[ "$NAME" = none ] && { echo "torch finds no GPU here; DEVICE=cpu SIZE=tiny ROUNDS=1 proves the script." >&2; exit 2; }
if [ -z "${TOKENS:-}" ]; then
    TOKENS=1024
    for step in "14 8192" "36 16384" "70 32768"; do
        set -- $step
        [ "$MEMORY" -ge "$1" ] && TOKENS=$2
    done
fi
REAL=$((MEMORY >= 130 || MEMORY == 0)) # peers pad: their rows are more than twice as many
OUT=${OUT:-benchmarks/gpu/$NAME}
mkdir -p "$OUT"
rm -f "$OUT"/{arms.jsonl,bench.jsonl,wrapper.jsonl,losses.jsonl,latency.jsonl,ranks.jsonl,log.txt,table.txt,tests.txt,costs.txt} "$OUT"/trace-*

say() { printf "%4d s  %s\n" "$SECONDS" "$*" | tee -a "$OUT/log.txt" >&2; }
limited() { # a command, unless the time is over; its errors go to the log
    local left=$((LIMIT - SECONDS)) code
    [ $left -gt 5 ] || { say "      skipped: the time is over"; return 1; }
    timeout "$left" "$@" 2>>"$OUT/log.txt"
    code=$?
    [ $code -eq 0 ] || say "code $code: $*"
    return $code
}
bench() { # work, size, sequence length (0: the work's own), flags
    local work=$1 size=$2 length=$3
    shift 3
    local of=$((length ? length : 384)) more=()
    [[ $REAL = 1 && " $* " != *" --lengths full "* ]] && of=$((of * 46 / 100)) # the mean of these lengths
    case $work in pretrain | finetune | inference) more=(--sequences $((TOKENS / of > 0 ? TOKENS / of : 1)));; esac
    say "$work $size $length $*"
    limited "$PYTHON" -m lambert bench --work "$work" --size "$size" --length "$length" "${more[@]}" \
        --device "$DEVICE" --rounds "$ROUNDS" "$@"
}
measure() { bench "$@" --json >>"$OUT/bench.jsonl"; }
wrapper() { # flags of wrapper.py
    say "wrapper $*"
    limited "$PYTHON" -m benchmarks.gpu.wrapper --device "$DEVICE" --size "$BASE" --rounds "$ROUNDS" \
        --sequences $((TOKENS / 512 > 0 ? TOKENS / 512 : 1)) "$@" >>"$OUT/wrapper.jsonl"
}
arms() { # work, arms
    say "arms $*"
    limited "$PYTHON" -m benchmarks.gpu.arms --device "$DEVICE" --tokens "$TOKENS" --rounds "$((ROUNDS < 5 ? ROUNDS : 5))" \
        --works "$1" --arms "${@:2}" >>"$OUT/arms.jsonl"
}
profile() { # name of the trace, then as bench
    local trace="$OUT/trace-$1.json"
    shift
    bench "$@" --profile "$trace" >>"$OUT/costs.txt" && gzip -f "$trace"
}

{
    "$PYTHON" -c "import platform, torch; print(platform.python_version(), torch.__version__, torch.version.cuda, torch.get_num_threads())"
    git rev-parse HEAD
    command -v nvidia-smi >/dev/null && nvidia-smi
} >>"$OUT/log.txt" 2>&1
say "$NAME, $MEMORY GiB, $TOKENS tokens a round"

if [ "${TESTS:-1}" = 1 ]; then
    say "tests"
    LAMBERT_TEST_GPU=1 limited timeout 200 "$PYTHON" -m pytest -p no:cacheprovider -p no:benchmark -k "cuda or gpu" -v -rs --timeout 140 \
        tests/model tests/engine tests/runs/test_compile.py >"$OUT/tests.txt"
    tail -n 3 "$OUT/tests.txt" | tee -a "$OUT/log.txt"
fi

ALL=(plain compiled triton graphs triton-graphs)
arms "$BASE-512-full" "${ALL[@]}"
[ "$BASE" = base ] && arms 8x512-128-full "${ALL[@]}"
arms "$BASE-512-wikipedia" compiled triton-graphs
[ "$BASE" = base ] && arms modern-base-512-wikipedia compiled triton-graphs

ranks() { # backend
    say "two ranks on one device, $*"
    local work
    work=$(mktemp -d)
    limited "$PYTHON" -m benchmarks.gpu.two_ranks --work "$work" --device "${DEVICE/%cuda/cuda:0}" --backend "$1" >>"$OUT/ranks.jsonl"
    rm -rf "$work"
}
say "one question"
models=$(mktemp -d)
limited "$PYTHON" -m benchmarks.gpu.latency --work "$models" --device "$DEVICE" --size "$BASE" --seconds 4 >>"$OUT/latency.jsonl"
rm -rf "$models"
ranks gloo

BOTH="transformers,transformers-compiled"
training=(--compile --optimizer --dropout 0.1)
measure pretrain "$BASE" 512 "${training[@]}" --peer "$BOTH"
wrapper --compile --methods float32 bfloat16
measure pretrain "$BASE" 512 --optimizer --dropout 0.1
measure pretrain "$LARGE" 512 "${training[@]}" --peer transformers
measure finetune "$BASE" 0 "${training[@]}" --peer "$BOTH"
modern=(--block modernbert --compile --optimizer) # its dropout is 0
MODERN_PEERS="transformers"
"$PYTHON" -c "import packed_encoders" 2>/dev/null && MODERN_PEERS="transformers,benchmarks.peers.packed_modernbert:training"
measure pretrain "$MODERN" 512 "${modern[@]}" --peer "$MODERN_PEERS"
measure pretrain "$MODERN" 8192 "${modern[@]}" --lengths full --peer transformers
measure inference "$BASE" 0 --peer transformers
measure pretrain "$LARGE" 128 "${training[@]}" --lengths full --peer transformers
measure pretrain "$BASE" 512 "${training[@]}" --lengths full --peer transformers
measure optimizer "$BASE" 0 --peer adamw,adamw-foreach
measure optimizer "$LARGE" 0 --peer adamw
profile compiled pretrain "$BASE" 512 "${training[@]}"
profile eager pretrain "$BASE" 512 --optimizer --dropout 0.1
measure loader "$BASE" 0
measure pretrain "$LARGE" 512 "${training[@]}" --lengths full --peer transformers
measure pretrain "$LARGE" 128 "${training[@]}" --peer transformers
measure inference "$BASE" 0 --peer transformers-compiled
measure pretrain "$BASE" 512 "${training[@]}" --padding length --peer transformers-compiled # static shapes
ranks nccl
if [ "$FLOAT8" = 1 ]; then
    measure pretrain "$LARGE" 512 "${training[@]}" --lengths full --precision float8
    losses=$(mktemp -d)
    say "losses in float8"
    limited "$PYTHON" -m benchmarks.precision.run --text docs --work "$losses" --precisions float32 float8 --size mini \
        --length 128 --device "$DEVICE" --seeds 1 --steps 100 --long 0 --out "$OUT/losses.jsonl"
    rm -rf "$losses"
fi

"$PYTHON" - "$OUT/bench.jsonl" <<'END' | tee "$OUT/table.txt"
import json, sys
columns = [("sequences/s", 12, ",.1f"), ("a second", 15, ",.0f"), ("ceiling", 9, ".1%"), ("MB", 9, ","),
           ("compile s", 11, ".1f"), ("times", 7, ".2f")]
print(f"{'work':30}{'side':23}" + "".join(f"{head:>{width}}" for head, width, _ in columns))
for line in open(sys.argv[1], encoding="utf-8"):
    found = json.loads(line)
    asked = found["settings"]
    what = f"{asked['work']} {asked['size']} {asked['length']} {asked['lengths']}"
    what += " float8" if asked["precision"] == "float8" else ""
    what += " modern" if asked["block"] == "modernbert" else ""
    for name, side in found["sides"].items():
        name += " (compiled)" if name == "lambert" and asked["compile"] else ""
        cells = [side.get("sequences_per_second"), side.get(f"{found['unit']}_per_second")]
        cells += [side.get("share_of_ceiling"), side["memory_mb"], side["compile_seconds"], side.get("ratio")]
        shown = ["-" if cell is None else format(cell, form) for cell, (_, _, form) in zip(cells, columns)]
        print(f"{what:30}{name:23}" + "".join(f"{text:>{width}}" for text, (_, width, _) in zip(shown, columns)))
        what = ""
END
say "done: $OUT"
