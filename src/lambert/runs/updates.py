"""The updates of a run: training, logging, evaluation and saving for any model and data."""

from collections import deque
from collections.abc import Callable, Generator, Iterator, Mapping
from contextlib import ExitStack, closing, contextmanager
from dataclasses import dataclass
from functools import partial
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np
import torch

from lambert.core.batch import Source
from lambert.core.world import World
from lambert.data.stream import GlobalBatch, places, stream
from lambert.distributed import agreement
from lambert.distributed.stragglers import Stragglers
from lambert.engine import archive, ceiling, environment
from lambert.engine.compiler import Compilation, compile_or_fall_back, should_compile
from lambert.engine.device import release
from lambert.engine.graphs import choose_graphs
from lambert.engine.guard import Incidents
from lambert.engine.log import SCORED, RunLog
from lambert.engine.loop import OutOfMemory, train
from lambert.engine.metrics_file import METRICS, last_update
from lambert.engine.numerics import Numerics, numerics
from lambert.engine.precision import PRECISIONS, Precision
from lambert.engine.signals import StopRequest, graceful_stop
from lambert.engine.step import Step
from lambert.model.heads import Model
from lambert.model.passes import find_passes
from lambert.model.relations import RelationStudent, RelationTeacher
from lambert.optim.schedule import schedule
from lambert.runs.config import RunConfig
from lambert.runs.distillation import WithRelations
from lambert.runs.exchange_autotune import autotune
from lambert.runs.log import count_operations, describe_ranks, model_notes, open_log
from lambert.runs.result import Result, Say, silent
from lambert.runs.run import Run

_TRIED = 4
"""Number of sequences on which compiling is tried."""
Score = Callable[[Model, Precision, int], dict[str, float]]
"""Returns the held-out scores of the model, computed with micro-batches of that many tokens; empty after a signal."""
Updates = Generator[Step, None, dict[str, float] | None]
"""Yields a Step after each update, with held-out scores if they were computed. Returns the final scores, or None if the
run was complete before."""


def run_to_end(updates: Callable[[StopRequest], Iterator[Step]], out: Path) -> Result:
    """Runs all updates that `updates(stop)` yields and returns the result of the run in the folder `out`.

    Raises SavedAndStopped after a signal, whenever it comes.
    """
    done = archive.find_last(out)
    with graceful_stop(
        f"; {_name_checkpoint(done)}" if done else " before the first update; nothing new to save"
    ) as stop:
        for _ in updates(stop):
            pass
    return Result.of_run(out)


def run_updates(
    config: RunConfig, model: Model, source: Source, score: Score, world: World, stop: StopRequest, say: Say,
    moments_of: Path | None = None, unigram_entropy: float | None = None, teacher: RelationTeacher | None = None,
) -> Updates:  # fmt: skip
    """Trains `model` in place, from the newest checkpoint of the run folder. The last Step has the final scores.

    Closing the generator saves a checkpoint after the update that was yielded last; all ranks must close it after the
    same update. A signal interrupts everything before the first update and after the last. Between them, the update or
    the evaluation ends and the run is saved. Threads, determinism and torch's generators are set for the run and
    restored at its end.

    Args:
        score: Computes the held-out scores.
        moments_of: A run folder from which a new run takes the optimizer moments.
        unigram_entropy: That of the corpus of a masked-LM run, in nats. The run warns if its loss stays near it.
        teacher: The teacher whose self-attention relations the model also learns.

    Raises:
        SavedAndStopped: A signal stopped the run.
        DivergedError: The guard stopped the run.
    """
    options = config.train
    planned = options.updates(source.size(0))
    source = source if teacher is None else WithRelations(source)
    with ExitStack() as opened:
        # The state of the run, from the newest checkpoint or new.
        outer = opened.enter_context(numerics(world, threads=options.threads, deterministic=options.deterministic))
        run = Run.begin(config, model, world, planned)
        run.guard.record = Incidents(config.out, partial(places, source, options.sizes, config.seed), world).add
        done, logged = run.resume()
        options.check_ranks(world.size, done)
        if done:
            stop.status = f"; {_name_checkpoint(done)}"
        elif moments_of is not None:
            run.take_moments(moments_of)

        # The end of the run, which an earlier process may have reached.
        training = _Training(run, source, teacher, score, stop, done=done, ends=planned, planned=planned)
        missed = _score_missed(training, logged)
        if run.best.exhausted:
            training.ends = done
        if _is_complete(training, say):
            return None

        # What the run needs: room on the disk, a size of micro-batches, the score to keep, compiled blocks, its log.
        if world.is_first:
            run.check_disk_space(training.ends)
        peak = _measure_ceiling(run) if world.is_first else None
        found = run.microbatch.find(
            source, model, run.optimizer, PRECISIONS[run.precision.name], options.batch_size, world,
            residuals_per_weight=run.exchange.residuals_per_weight,
        )  # fmt: skip
        if run.best.name and not done:  # a misspelt name is found before the first update
            run.best.check(_score(training, done))
        compilation = opened.enter_context(_compile(run, source))
        opened.enter_context(stop.defer())
        start = _describe_start(training)  # before the log truncates metrics.jsonl
        log = opened.enter_context(
            open_log(run, training.ends, done, logged, peak, compilation, unigram_entropy, quiet=say is silent)
        )
        opened.enter_context(closing(run.saver))
        methods = autotune(run, partial(_batches, training), training.ends, stop)
        for text in chain([start, found], model_notes(compilation, model, run.precision.name, world), methods):
            log.note(text)
        log.note(describe_ranks(world, run.exchange.method))
        log.scores(done, missed, run.best.step)
        if compilation.active:  # evaluation is rare: compiling separate graphs for it would not pay
            training.score = torch.compiler.set_stance("force_eager")(score)

        scores = yield from _follow(training, log, peak, outer)
        if scores is None:  # an earlier process was killed between the last save and these scores
            scores = missed or _log_scores(training, log, training.done)
        scores, line = run.best.take(scores, model)
        log.note(line)
    return scores


@dataclass(slots=True)
class _Training:
    """What a run trains on and is scored by, how far it is, and where it ends."""

    run: Run
    source: Source
    teacher: RelationTeacher | None
    score: Score
    stop: StopRequest
    done: int
    """Number of updates done."""
    ends: int
    """The update after which it ends: `planned`, or earlier if its score no longer improves."""
    planned: int
    """Number of updates of the learning rate's schedule."""


def _follow(training: _Training, log: RunLog, peak: ceiling.Ceiling | None, outer: Numerics) -> Updates:
    """Yields each update when it is logged, checked, scored and saved. Returns the final scores, or None if no update
    was left. The caller computes with the settings `outer`."""
    run, stop, options = training.run, training.stop, training.run.config.train
    scores: dict[str, float] | None = None
    slow = Stragglers()
    for step, work in _attempts(training, log):
        log.step(step, work)
        log.peak_flops = peak.again() if peak is not None else None
        run.saver.report()
        log.note(slow.watch(step))

        # Whether the run is sound: equal weights on all ranks, and a loss that does not run away.
        if step.due(options.compare_every) and not run.exchange.local:
            agreement.compare_weights(run.world, run.model, step.index)
        scoring = step.due(options.evaluate_every) and step.index < training.ends
        save_due = step.due(options.save_every)
        pausing = step.index == training.ends or save_due or scoring or step.stop_requested
        answer = run.guard.watch(step)
        if pausing and answer == "go on":
            answer = run.guard.judge_last()
        if answer == "roll back":
            training.done = run.roll_back(log)
            continue

        # Evaluation, a signal, and the end of a run whose score no longer improves.
        if scoring:
            step.scores = _log_scores(training, log, step.index, between=True)
        if (step.stop_requested or scoring) and stop.agree(run.world):
            run.save(step.index, log, final=True)
            raise stop.build_error(f"saved after update {step.index:,} of {training.ends:,}")
        if run.best.exhausted:
            training.ends = step.index
            log.note(f"the run ends after update {step.index:,} of {training.planned:,}: {run.best.reason}")

        # Saving. While the loss is suspect nothing is saved, so that the kept checkpoints are healthy.
        step.last = step.index == training.ends
        saving = step.last or (save_due and run.guard.healthy == step.index)
        if saving:
            with log.show_activity("saving"):
                run.save(step.index, log, final=step.last)
        if step.last:
            scores = dict(step.scores) if scoring else _log_scores(training, log, step.index)
            step.scores = scores

        try:
            with outer.outside():
                yield step
        except GeneratorExit:
            if not saving and run.guard.judge_last() == "go on":
                run.save(step.index, log, final=True)
            raise
    return scores


def _score_missed(training: _Training, logged: Mapping[str, Any]) -> dict[str, float]:
    """Returns the scores of an evaluation after the last update done that a signal interrupted; empty if there is
    none."""
    done, every, best = training.done, training.run.config.train.evaluate_every, training.run.best
    if not (0 < done < training.planned and every and done % every == 0):
        return {}
    if min(logged.get(SCORED, done), best.scored if best.name else done) == done:
        return {}
    scores = _score(training, done)
    best.offer(done, scores, training.run.model)
    return scores


def _is_complete(training: _Training, say: Say) -> bool:
    """Returns whether all updates are done and the model is written; `say` then gets a line."""
    run, out = training.run, training.run.config.out
    written = int((out / "model").is_dir())
    if training.done < training.ends or not run.world.largest(written):  # a shared disk may show it late
        return False
    early = f" of {training.planned:,}, because {run.best.reason}" if run.best.exhausted else ""
    if run.world.is_first:
        say(f"{out} has all its {training.ends:,} updates already{early}: {out / 'model'}")
    return True


def _describe_start(training: _Training) -> str:
    """Returns a line about earlier processes of the run; empty if there were none."""
    if training.done:
        return f"continuing after update {training.done:,} of {training.ends:,}"
    lost = last_update(training.run.config.out / METRICS) if training.run.world.is_first else 0
    if not lost:
        return ""
    return f"warning: {METRICS} has {lost:,} updates, but there is no checkpoint: the run starts from the beginning"


def _log_scores(training: _Training, log: RunLog, done: int, *, between: bool = False) -> dict[str, float]:
    """Returns and logs the held-out scores after `done` updates."""
    run = training.run
    if run.exchange.local and between:  # the ranks' weights differ
        run.exchange.average_residuals(run.optimizer)
    with log.show_activity("scoring"):
        scores = _score(training, done, between=between)
    run.best.offer(done, scores, run.model)
    log.scores(done, scores, run.best.step)
    return scores


def _measure_ceiling(run: Run) -> ceiling.Ceiling:
    """Measures the device, and takes the best rate of earlier processes of the run on such a device."""
    before = ceiling.read_ceiling(run.config.out, environment.machine(run.world))
    return ceiling.Ceiling(run.world.device, PRECISIONS[run.precision.name], before)


def _score(training: _Training, done: int, *, between: bool = False) -> dict[str, float]:
    """Returns the held-out scores after `done` updates. Raises SavedAndStopped on all ranks after a signal to one,
    except `between` two updates, where the caller does."""
    run, stop = training.run, training.stop
    if done and not between:
        stop.status = f"; {_name_checkpoint(done)}"
    scores = training.score(run.model, run.precision, run.microbatch.tokens)
    if not between and stop.agree(run.world):
        raise stop.build_error(_name_checkpoint(done))
    return scores


def _name_checkpoint(done: int) -> str:
    return f"the newest checkpoint is that of update {done:,}"


@contextmanager
def _compile(run: Run, source: Source) -> Iterator[Compilation]:
    """Compiles the model's blocks if the settings ask for it and a pass over a few sequences succeeds."""
    options, model, world = run.config.train, run.model, run.world
    if not should_compile(options.compile, world.device):
        yield Compilation()
        return

    def trial() -> None:
        indices_S = np.arange(min(_TRIED, source.size(0)))
        batch = world.put(source.collate(np.zeros_like(indices_S), indices_S)).with_compute(run.precision.compute)
        with run.precision.autocast():
            total = model.train()(batch).sum()
        total.backward()
        float(total.detach())  # waits for the device
        model.zero_grad()

    with compile_or_fall_back(model.encoder.blocks, trial, world) as compilation:
        yield compilation


def _attempts(training: _Training, log: RunLog) -> Iterator[tuple[Step, int]]:
    """Yields the updates until the end of the `training`, each with the floating-point operations of this rank's share.
    If the caller sets `training.done` back, they continue from there.

    If memory runs out, the update is computed again with smaller micro-batches; the weights have not changed yet.
    """
    run, teacher = training.run, training.teacher
    config, world = run.config, run.world
    rate = schedule(config.optim, training.planned)
    net = run.model if teacher is None else RelationStudent(run.model, teacher)
    while training.done < training.ends:
        costs: deque[int] = deque()
        batches = _batches(training, training.done, training.planned)
        try:
            for step in train(
                net, run.optimizer, count_operations(batches, run.model, teacher, costs),
                schedule=lambda applied: run.guard.lr_scale * rate(applied), max_grad_norm=config.optim.max_grad_norm,
                precision=run.precision, world=world, seed=config.seed, start=training.done, steps=training.planned,
                exchange=run.exchange, stop=training.stop, graphs=choose_graphs(world, run.microbatch.tokens, log.note),
                passes=find_passes(net),
            ):  # fmt: skip
                training.done = step.index
                yield step, costs.popleft()
                if training.done < step.index or training.done == training.ends:
                    break
        except OutOfMemory as error:
            log.note(run.microbatch.lower(error))
        else:
            continue
        release(world.device)


def _batches(training: _Training, start: int, stop: int | None = None) -> Generator[GlobalBatch, None, None]:
    """Returns this rank's share of the global batches from update `start` to `stop`, or without end."""
    run, world = training.run, training.run.world
    options = run.config.train
    parts = options.deterministic_parts if options.deterministic else 0
    return stream(
        training.source, batch_size=options.sizes, micro_tokens=run.microbatch.tokens, seed=run.config.seed,
        start=start, rank=world.rank, world=world.size, stop=stop, shares=parts,
    )  # fmt: skip
