"""Run an experiment: its trials are spread over the cores of this machine, or over any cluster that Dask knows.

    minitransformer experiment positions                                       this machine, one core for each trial
    minitransformer experiment positions --scheduler tcp://192.168.0.7:8786    the workers of that scheduler

Each trial that ends is written down at once, in a file beside the record. A run that is interrupted, or dies, goes on from
there; when all trials are done, the file becomes the record. A trial computes with one thread, so the number of workers and
the order in which they finish leave no trace in what is kept.
"""

import logging
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from pathlib import Path
from types import ModuleType
from typing import Any

from threadpoolctl import threadpool_limits
from tqdm import tqdm

from minitransformer.backend import current
from minitransformer.experiments.record import RECORDS, Record, digest, plain, read, write
from minitransformer.machine import circumstances, cores


class ExperimentError(ValueError):
    """Trials failed, or can't be run; those that ended well are kept."""


def run(
    experiment: ModuleType,
    *,
    scheduler: str | None = None,
    workers: int | None = None,
    renew: bool = False,
    progress: bool = True,
    records: Path = RECORDS,
) -> Path:
    """Run the trials that the record lacks, or all of them anew; returns the path of the record.

    scheduler   address of a Dask scheduler; its workers need this package
    workers     processes on this machine, where no scheduler is given (default: one for each core)
    raises      ExperimentError if a trial fails (the others are run and kept), or there is no such scheduler
    """
    name = experiment.__name__.rpartition(".")[2]
    path, part = records / f"{name}.json", records / f".{name}.part.json"
    trials = experiment.trials()
    done = _done(experiment, part if part.is_file() else path, keep=part.is_file() or not renew)

    def keep(to: Path) -> None:
        here = [trial for trial in trials if _key(trial) in done]
        write(to, name, Record(here, *map(list, zip(*(done[_key(trial)] for trial in here), strict=True))))

    missing = [trial for trial in trials if _key(trial) not in done]
    failed = []
    alone = getattr(experiment, "ALONE", False)
    if missing:
        with (
            tqdm(total=len(trials), initial=len(trials) - len(missing), desc=name, disable=not progress) as bar,
            _client(scheduler, 1 if alone else min(workers or cores(), len(missing))) as client,
        ):
            for trial, outcome in _outcomes(client, experiment.run, missing, alone):
                if isinstance(outcome, BaseException):
                    failed.append(f"{trial}: {type(outcome).__name__}: {outcome}")
                    continue
                done[_key(trial)] = outcome
                keep(part)
                bar.update()
    if failed:
        raise ExperimentError("\n".join([f"{name}: {len(failed)} of {len(trials)} trials failed", *failed]))
    keep(path)
    part.unlink(missing_ok=True)
    return path


def _key(trial: Any) -> str:
    return digest(plain(trial))


def _done(experiment: ModuleType, path: Path, keep: bool) -> dict[str, tuple[Any, Any]]:
    """By the digest of its trial: result and machine of what has been run, of these trials or of others."""
    if not keep or not path.is_file():
        return {}
    try:
        record = read(path, experiment.Trial)
    except ValueError:  # damaged, or of trials with other fields: nothing in it can be used
        return {}
    rows = zip(record.trials, record.results, record.machines, strict=True)
    return {_key(trial): (result, machine) for trial, result, machine in rows}


@contextmanager
def _client(scheduler: str | None, workers: int) -> Iterator[Any]:
    """A connection to the scheduler, or to processes of our own that end with it."""
    try:
        import dask
        from distributed import Client, LocalCluster
    except ImportError as error:
        raise ExperimentError(f"trials are spread by Dask: pip install distributed ({error})") from None
    if scheduler is None:
        with (
            dask.config.set({"distributed.nanny.pre-spawn-environ.MALLOC_ARENA_MAX": 1}),  # or a thread keeps nothing
            LocalCluster(
                n_workers=workers, threads_per_worker=1, dashboard_address=":0", silence_logs=logging.CRITICAL
            ) as cluster,
            Client(cluster) as client,
        ):
            yield client
        return
    try:
        client = Client(scheduler, timeout=5)
    except (OSError, ValueError) as error:
        raise ExperimentError(f"--scheduler {scheduler}: {error}") from None
    with client:
        yield client


def _outcomes(client: Any, work: Any, trials: list[Any], alone: bool) -> Iterator[tuple[Any, Any]]:
    """Each trial with its result and machine, or with its exception, in the order in which they end."""
    from distributed import as_completed

    if alone:  # one after the other, always on the same worker
        worker = next(iter(client.scheduler_info(n_workers=-1)["workers"]))
        for trial in trials:
            yield trial, _ended(client.submit(on_this_core, work, trial, True, workers=[worker], pure=False))
        return
    jobs = {client.submit(on_this_core, work, trial, pure=False): trial for trial in trials}
    for job in as_completed(jobs):
        yield jobs[job], _ended(job)


def _ended(job: Any) -> Any:
    try:
        return job.result()
    except Exception as error:
        return error


def on_this_core(work: Any, trial: Any, alone: bool = False) -> tuple[Any, dict[str, Any]]:
    """The result of a trial and the machine that it was made on; on one core, unless it is alone there."""
    with nullcontext() if alone else _one_thread():
        return work(trial), circumstances()


@contextmanager
def _one_thread() -> Iterator[None]:
    with threadpool_limits(1):
        if current() == "numpy":
            yield
            return
        from minitransformer.kernels.threads import limit

        with limit(1):
            yield
