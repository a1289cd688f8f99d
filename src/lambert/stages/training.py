"""What pre-training and fine-tuning share: the loop with its logging, scores and checkpoints."""

import os
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from functools import partial
from pathlib import Path

import numpy as np
import torch

from lambert.core.batch import Source
from lambert.core.errors import UsageError
from lambert.core.products import PRODUCTS
from lambert.data.stream import GlobalBatch, places, stream
from lambert.engine import archive, checkpoint
from lambert.engine.ceiling import product_ceiling
from lambert.engine.cluster import agreement
from lambert.engine.cluster.dist import World
from lambert.engine.cluster.stragglers import Stragglers
from lambert.engine.compiler import Compilation, compiled, wanted
from lambert.engine.exchange import Exchange
from lambert.engine.incidents import Incidents
from lambert.engine.log import RunLog
from lambert.engine.loop import OutOfMemory, Step, train
from lambert.engine.memory import release
from lambert.engine.precision import PRECISIONS, Precision
from lambert.engine.signals import StopRequest
from lambert.model import attention, flops
from lambert.model.heads import Model
from lambert.optim.schedule import schedule
from lambert.stages.config import RunConfig, TrainConfig
from lambert.stages.run import Run
from lambert.stages.tuning import tune

_TRIED = 4
"""Sequences that compiling is tried on."""
Score = Callable[[Model, Precision, int], dict[str, float]]
"""Held-out scores of the model as it is, computed so many tokens at once; none where a signal broke them off."""


def fit(
    config: RunConfig,
    model: Model,
    source: Source,
    score: Score,
    world: World,
    stop: StopRequest,
    moments_of: Path | None = None,
) -> dict[str, float] | None:
    """Trains `model` in place from where the run folder was left, and gives the held-out scores at the end.

    None where the run had ended before. `moments_of` is a run whose optimizer moments a new run takes over. `stop` is
    broken off by a signal up to the first update, and again behind this; in between, the update or the scoring ends
    and the run is saved. Raises SavedAndStopped then, DivergedError from the guard.
    """
    options, out = config.train, config.out
    if config.guard.action == "roll back" and not options.save_every:
        raise UsageError("guard.action = 'roll back' needs checkpoints to go back to: set train.save_every.")
    steps = options.updates(source.size(0))
    if options.deterministic:
        os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")  # before cuBLAS is first called
        torch.use_deterministic_algorithms(True)
        PRODUCTS.one_layout = True
    run = Run.begin(config, model, world, steps)
    run.guard.record = Incidents(out, partial(places, source, options.batch_size, config.seed), world).add
    if options.deterministic or options.threads or world.size > 1:
        torch.set_num_threads(threads(options, world))
    done, logged = run.resume()
    options.check_ranks(world.size, done)
    if done:
        stop.standing = f"; {_left(done)}"
    if done == 0 and moments_of is not None:
        run.take_moments(moments_of)
    if done >= steps and world.largest(int((out / "model").is_dir())):  # a shared disk shows it to some ranks later
        if world.is_first:
            print(f"{out} has all its {steps:,} updates already: {out / 'model'}")
        return None
    if world.is_first:
        checkpoint.check_room(out, model, moments=2 + run.exchange.held_back)
    peak = product_ceiling(world.device, PRECISIONS[options.precision], repeats=1) if world.is_first else None
    found = run.budget.find(
        source, model, run.optimizer, PRECISIONS[options.precision], options.batch_size, world,
        held_back=run.exchange.held_back,
    )  # fmt: skip
    with (
        _compiled(run, source) as compilation,
        stop.patient(),
        RunLog(
            out, steps=steps, start=done, state=logged, description=out.name, peak_flops=peak, world=world,
            every=config.log.every, seconds=config.log.seconds, tensorboard=config.log.tensorboard,
            quiet=not config.log.console, facts={"micro_tokens": run.budget.tokens} | _facts(compilation),
        ) as log,
        closing(run.saver),
    ):  # fmt: skip
        if done:
            log.note(f"continuing after update {done:,} of {steps:,}")
        for text in (found, *_said(compilation, model, options.precision, world)):
            log.say(text)
        for text in (*tune(run, partial(_batches, run, source), steps, stop), *ranks(world, run.exchange)):
            log.note(text)
        if compilation.active:  # scores are seldom taken: graphs of their own would not pay
            score = torch.compiler.set_stance("force_eager")(score)
        slow = Stragglers()
        while done < steps:
            for step, work in _updates(run, source, log, done, steps, stop):
                done, asked = step.index, step.asked
                log.step(step, work)
                run.saver.report()
                log.say(slow.watch(step))
                if step.due(options.compare_every) and not run.exchange.local:
                    agreement.compare_weights(world, model, done)
                answer = run.guard.watch(step)
                scoring = step.due(options.evaluate_every) and done < steps
                pausing = done == steps or step.due(options.save_every) or scoring or asked
                if pausing and answer == "go on":
                    answer = run.guard.settle()
                if answer == "roll back":
                    done = run.roll_back(log)
                    break
                if scoring:
                    if run.exchange.local:  # weights are apart
                        run.exchange.settle(run.optimizer)
                    log.scores(done, score(model, run.precision, run.budget.tokens))
                if (asked or scoring) and stop.agreed(world):
                    run.save(done, log, final=True)
                    raise stop.stopped(f"saved after update {done:,} of {steps:,}")
                # In trouble nothing is saved, so that the checkpoints kept are those from before.
                if done == steps or (step.due(options.save_every) and run.guard.healthy == done):
                    run.save(done, log, final=done == steps)
        stop.standing = f"; {_left(done)}"
        scores = score(model, run.precision, run.budget.tokens)
        if stop.agreed(world):
            raise stop.stopped(_left(done))
        log.scores(done, scores)
    return scores


def threads(options: TrainConfig, world: World) -> int:
    """Threads of each rank. Where the recipe leaves them open, as many as the rank has that has the fewest: the others
    would wait for it, and what all compute alike, as PowerSGD's bases, would round by their own number."""
    fewest = -world.largest(-torch.get_num_threads())
    return options.threads or (1 if options.deterministic else fewest)


def standing(out: Path) -> str:
    """What a run in the folder `out` leaves that is stopped before it has done anything, as `polite` takes it."""
    done = archive.last(out)
    return f"; {_left(done)}" if done else " before the first update; nothing new to save"


def _left(done: int) -> str:
    return f"the checkpoint after update {done:,} stands"


@contextmanager
def _compiled(run: Run, source: Source) -> Iterator[Compilation]:
    """The model's blocks compiled, where that is wanted and a pass over a few sequences shows that it works."""
    options, model, world = run.config.train, run.model, run.world
    if not wanted(options.compile, world.device):
        yield Compilation()
        return

    def trial() -> None:
        indices_S = np.arange(min(_TRIED, source.size(0)))
        batch = world.put(source.collate(np.zeros_like(indices_S), indices_S))
        with run.precision.autocast():
            total = model.train()(batch).sum()
        total.backward()
        float(total.detach())  # waits for the device
        model.zero_grad()

    attention.leave_to_python()
    with compiled(model.encoder.blocks, trial, world) as compilation:
        yield compilation


def ranks(world: World, exchange: Exchange) -> Iterator[str]:
    """What the user of several ranks is told: how many, why that was taken to be so, and how gradients travel."""
    if world.size > 1:
        yield f"{world.size} ranks, {world.local_size} a machine ({world.reason}), gradients by {exchange.method}"


def _facts(compilation: Compilation) -> dict[str, object]:
    """For environment.json."""
    return {"compiled": compilation.active, "compile_seconds": round(compilation.seconds, 3)}


def _said(compilation: Compilation, model: Model, precision: str, world: World) -> Iterator[str]:
    """What the user is told once about how the model is computed."""
    if compilation.active:
        yield f"blocks compiled in {compilation.seconds:,.0f} s"
    elif compilation.problem:
        yield f"blocks are not compiled, the run is slower: {compilation.problem}"
    width = model.config.hidden // model.config.heads
    if world.device.type != "cpu" and attention.kernel(world.device, PRECISIONS[precision], width) != "flash":
        kernel = attention.kernel(world.device, PRECISIONS[precision], width)
        yield (
            f"attention by the {kernel} kernel, which is slower: flash attention needs bfloat16 or float16 (this is "
            f"{precision}), heads of a multiple of 8 up to 256 ({width}), and a GPU of compute capability 8.0"
        )


def _updates(
    run: Run, source: Source, log: RunLog, done: int, steps: int, stop: StopRequest
) -> Iterator[tuple[Step, int]]:
    """Updates `done` to `steps` - 1, each with the floating-point operations of this rank's share of it.

    Where memory runs out, the update is begun anew with smaller micro-batches: the weights are those from before it.
    """
    config, world = run.config, run.world
    rate = schedule(config.optim, steps)
    while True:
        costs: deque[int] = deque()
        batches = _batches(run, source, done, steps)
        try:
            for step in train(
                run.model, run.optimizer, _priced(batches, run.model, costs),
                schedule=lambda applied: run.guard.lr_scale * rate(applied), clip=config.optim.clip,
                precision=run.precision, world=world, seed=config.seed, start=done, steps=steps, exchange=run.exchange,
                stop=stop,
            ):  # fmt: skip
                done = step.index
                yield step, costs.popleft()
            return
        except OutOfMemory as error:
            log.note(run.budget.lower(error))
        release(world.device)


def _batches(run: Run, source: Source, start: int, stop: int | None = None) -> Iterator[GlobalBatch]:
    """This rank's share of the global batches from update `start` on, up to `stop` or endless."""
    options, world = run.config.train, run.world
    return stream(
        source, batch_size=options.batch_size, micro_tokens=run.budget.tokens, seed=run.config.seed, start=start,
        rank=world.rank, world=world.size, stop=stop, shares=options.shares if options.deterministic else 0,
    )  # fmt: skip


def _priced(updates: Iterator[GlobalBatch], model: Model, costs: deque[int]) -> Iterator[GlobalBatch]:
    """Hands the updates on, and appends the floating-point operations of this rank's share of each to `costs`."""
    with closing(updates):  # type: ignore[type-var]
        for update in updates:
            batches = [batch for _, batch in update.micro_batches]
            lengths = [length for batch in batches for length in batch.bounds_S1.diff().tolist()]
            targets = {name: sum(batch.targets[name].count for batch in batches) for name in update.counts}
            costs.append(flops.training(model.config, lengths, targets, model.labels))
            yield update
