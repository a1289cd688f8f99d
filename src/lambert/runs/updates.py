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
from lambert.engine.numerics import numerics
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
from lambert.runs.log import count_operations, create_plateau_monitor, describe_ranks, model_notes, open_log
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
    config: RunConfig,
    model: Model,
    source: Source,
    score: Score,
    world: World,
    stop: StopRequest,
    say: Say,
    moments_of: Path | None = None,
    unigram_entropy: float | None = None,
    teacher: RelationTeacher | None = None,
) -> Updates:
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
    options, out = config.train, config.out
    planned = options.updates(source.size(0))
    source = source if teacher is None else WithRelations(source)
    with ExitStack() as opened:
        # The state of the run, from the newest checkpoint or new.
        outer = opened.enter_context(numerics(world, threads=options.threads, deterministic=options.deterministic))
        run = Run.begin(config, model, world, planned)
        run.guard.record = Incidents(out, partial(places, source, options.sizes, config.seed), world).add
        done, logged = run.resume()
        lost = last_update(out / METRICS) if world.is_first and not done else 0
        options.check_ranks(world.size, done)
        if done:
            stop.status = f"; {_name_checkpoint(done)}"
        elif moments_of is not None:
            run.take_moments(moments_of)

        # The end of the run, which an earlier process may have reached.
        missed = _score_missed(run, score, done, planned, logged, stop)
        best = run.best
        course = _Course(done, ends=done if best.exhausted else planned, planned=planned)
        if done >= course.ends and world.largest(int((out / "model").is_dir())):  # a shared disk may show it late
            early = f" of {planned:,}, because {best.reason}" if best.exhausted else ""
            if world.is_first:
                say(f"{out} has all its {course.ends:,} updates already{early}: {out / 'model'}")
            return None

        # What the run needs: room on the disk, a size of micro-batches, the score to keep, compiled blocks, its log.
        if world.is_first:
            run.check_disk_space(course.ends)
        peak = _measure_ceiling(run) if world.is_first else None
        found = run.microbatch.find(
            source, model, run.optimizer, PRECISIONS[run.precision.name], options.batch_size, world,
            residuals_per_weight=run.exchange.residuals_per_weight,
        )  # fmt: skip
        if best.name and not done:  # a misspelt name is found before the first update
            best.check(_score(run, score, done, stop))
        compilation = opened.enter_context(_compile(run, source))
        opened.enter_context(stop.defer())
        monitor = create_plateau_monitor(
            unigram_entropy, lr=config.optim.lr, eps=config.optim.eps, init_range=model.config.init_range
        )
        log = opened.enter_context(
            open_log(run, course.ends, done, logged, peak, compilation, monitor, quiet=say is silent)
        )
        opened.enter_context(closing(run.saver))
        if done:
            log.note(f"continuing after update {done:,} of {course.ends:,}")
        if lost:
            log.note(
                f"warning: {METRICS} has {lost:,} updates, but there is no checkpoint: the run starts from the "
                "beginning"
            )
        models = model_notes(compilation, model, run.precision.name, world)
        methods = autotune(run, partial(_batches, run, source), course.ends, stop)
        for text in chain([found], models, methods):
            log.note(text)
        log.note(describe_ranks(world, run.exchange.method))
        log.scores(done, missed, best.step)
        if compilation.active:  # evaluation is rare: compiling separate graphs for it would not pay
            score = torch.compiler.set_stance("force_eager")(score)

        scores: dict[str, float] | None = missed if best.exhausted and missed else None
        slow = Stragglers()
        for step, work in _attempts(run, teacher, source, log, course, stop):
            log.step(step, work)
            log.peak_flops = peak.again() if peak is not None else None
            run.saver.report()
            log.note(slow.watch(step))

            # Whether the run is sound: equal weights on all ranks, and a loss that does not run away.
            if step.due(options.compare_every) and not run.exchange.local:
                agreement.compare_weights(world, model, step.index)
            scoring = step.due(options.evaluate_every) and step.index < course.ends
            save_due = step.due(options.save_every)
            pausing = step.index == course.ends or save_due or scoring or step.stop_requested
            answer = run.guard.watch(step)
            if pausing and answer == "go on":
                answer = run.guard.judge_last()
            if answer == "roll back":
                course.done = run.roll_back(log)
                continue

            # Evaluation, a signal, and the end of a run whose score no longer improves.
            if scoring:
                step.scores = _log_scores(run, score, log, step.index)
            if (step.stop_requested or scoring) and stop.agree(world):
                run.save(step.index, log, final=True)
                raise stop.build_error(f"saved after update {step.index:,} of {course.ends:,}")
            if best.exhausted:
                course.ends = step.index
                log.note(f"the run ends after update {step.index:,} of {planned:,}: {best.reason}")

            # Saving. While the loss is suspect nothing is saved, so that the kept checkpoints are healthy.
            step.last = step.index == course.ends
            saving = step.last or (save_due and run.guard.healthy == step.index)
            if saving:
                with log.show_activity("saving"):
                    run.save(step.index, log, final=step.last)
            if step.last:
                scores = dict(step.scores) if scoring else _log_scores(run, score, log, step.index, stop)
                step.scores = scores

            try:
                with outer.outside():
                    yield step
            except GeneratorExit:
                if not saving and run.guard.judge_last() == "go on":
                    run.save(step.index, log, final=True)
                raise

        if scores is None:  # an earlier process was killed between the last save and these scores
            scores = _log_scores(run, score, log, course.done, stop)
        scores, line = best.take(scores, model)
        log.note(line)
    return scores


@dataclass(slots=True)
class _Course:
    """How far a run is, and where it ends."""

    done: int
    """Number of updates done."""
    ends: int
    """The update after which it ends: `planned`, or earlier if its score no longer improves."""
    planned: int
    """Number of updates of the learning rate's schedule."""


def _score_missed(
    run: Run, score: Score, done: int, planned: int, logged: Mapping[str, Any], stop: StopRequest
) -> dict[str, float]:
    """Returns the scores of an evaluation after update `done` that a signal interrupted; empty if there is none."""
    every, best = run.config.train.evaluate_every, run.best
    if not (0 < done < planned and every and done % every == 0):
        return {}
    if min(logged.get(SCORED, done), best.scored if best.name else done) == done:
        return {}
    scores = _score(run, score, done, stop)
    best.offer(done, scores, run.model)
    return scores


def _log_scores(run: Run, score: Score, log: RunLog, done: int, stop: StopRequest | None = None) -> dict[str, float]:
    """Returns and logs the held-out scores after `done` updates: between two updates, or with `stop` after the last
    one, where a signal raises SavedAndStopped."""
    if run.exchange.local and stop is None:  # the ranks' weights differ
        run.exchange.average_residuals(run.optimizer)
    with log.show_activity("scoring"):
        scores = _score(run, score, done, stop)
    run.best.offer(done, scores, run.model)
    log.scores(done, scores, run.best.step)
    return scores


def _measure_ceiling(run: Run) -> ceiling.Ceiling:
    """Measures the device, and takes the best rate of earlier processes of the run on such a device."""
    before = ceiling.read_ceiling(run.config.out, environment.machine(run.world))
    return ceiling.Ceiling(run.world.device, PRECISIONS[run.precision.name], before)


def _score(run: Run, score: Score, done: int, stop: StopRequest | None) -> dict[str, float]:
    """Returns the held-out scores after `done` updates. With `stop`, raises SavedAndStopped on all ranks after a signal
    to one."""
    if stop is not None and done:
        stop.status = f"; {_name_checkpoint(done)}"
    scores = score(run.model, run.precision, run.microbatch.tokens)
    if stop is not None and stop.agree(run.world):
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


def _attempts(
    run: Run, teacher: RelationTeacher | None, source: Source, log: RunLog, course: _Course, stop: StopRequest
) -> Iterator[tuple[Step, int]]:
    """Yields the updates until the end of the `course`, each with the floating-point operations of this rank's share.
    If the caller sets `course.done` back, they continue from there.

    If memory runs out, the update is computed again with smaller micro-batches; the weights have not changed yet.
    """
    config, world = run.config, run.world
    rate = schedule(config.optim, course.planned)
    net = run.model if teacher is None else RelationStudent(run.model, teacher)
    while course.done < course.ends:
        costs: deque[int] = deque()
        batches = _batches(run, source, course.done, course.planned)
        try:
            for step in train(
                net, run.optimizer, count_operations(batches, run.model, teacher, costs),
                schedule=lambda applied: run.guard.lr_scale * rate(applied), max_grad_norm=config.optim.max_grad_norm,
                precision=run.precision, world=world, seed=config.seed, start=course.done, steps=course.planned,
                exchange=run.exchange, stop=stop, graphs=choose_graphs(world, run.microbatch.tokens, log.note),
                passes=find_passes(net),
            ):  # fmt: skip
                course.done = step.index
                yield step, costs.popleft()
                if course.done < step.index or course.done == course.ends:
                    break
        except OutOfMemory as error:
            log.note(run.microbatch.lower(error))
        else:
            continue
        release(world.device)


def _batches(run: Run, source: Source, start: int, stop: int | None = None) -> Generator[GlobalBatch, None, None]:
    """Returns this rank's share of the global batches from update `start` to `stop`, or without end."""
    options, world = run.config.train, run.world
    parts = options.deterministic_parts if options.deterministic else 0
    return stream(
        source, batch_size=options.sizes, micro_tokens=run.microbatch.tokens, seed=run.config.seed, start=start,
        rank=world.rank, world=world.size, stop=stop, shares=parts,
    )  # fmt: skip
