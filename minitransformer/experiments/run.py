"""Run an experiment: its trials are spread over the cores of this machine, or over any cluster that Dask knows.

    minitransformer experiment positions                                       this machine, one core for each trial
    minitransformer experiment positions --scheduler tcp://192.168.0.7:8786    the workers of that scheduler

Each trial that ends is written down at once, in a file beside the record. A run that is interrupted, or dies, goes on from
there; when all trials are done, the file becomes the record. A trial computes with one thread, so the number of workers and
the order in which they finish leave no trace in what is kept, except for the seconds that each has taken. Only where times are
measured (`ALONE`) do trials run one after the other, each on all cores.
"""

import importlib
import logging
import socket
import textwrap
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager, nullcontext, suppress
from pathlib import Path
from types import ModuleType
from typing import Any

from tqdm import tqdm

from minitransformer import files
from minitransformer.experiments.record import RECORDS, Record, digest, plain, read, write
from minitransformer.experiments.speed import on
from minitransformer.extensions import ReaderFile
from minitransformer.machine import LOOPBACK, circumstances, cores, refuse_no_loopback
from minitransformer.ranges import so_many
from minitransformer.terminal import columns, ctrl_c_waits

LOCAL = {
    "distributed.nanny.pre-spawn-environ.MALLOC_ARENA_MAX": 1,  # or `keep_freed_memory` has no effect in threads
    "distributed.scheduler.http.routes": [],  # call stacks, logs
    "distributed.worker.http.routes": [],
}


class ExperimentError(ValueError):
    """Trials failed, or can't be run; those that ended well are kept."""


def run(
    experiment: ModuleType,
    *,
    scheduler: str | None = None,
    tls: dict[str, str] | None = None,
    workers: int | None = None,
    renew: bool = False,
    progress: bool = True,
    records: Path = RECORDS,
    bring: Sequence[ReaderFile] = (),
) -> Path:
    """Run the trials that the record lacks, or all of them anew; returns the path of the record.

    scheduler   address of a Dask scheduler; its workers need this package
    tls         for a scheduler at tls://…: the paths `ca_file`, `cert` and `key`, where Dask is not configured with them
    workers     processes on this machine, where no scheduler is given (default: one for each core)
    bring       files of the reader's, which every worker runs before its first trial
    raises      ExperimentError if a trial fails (the others are run and kept), what was kept is damaged, another run is
                writing the same record, or there is no such scheduler
    """
    name, path, part = _places(experiment, records)
    if scheduler is not None:
        _host_and_port(scheduler)  # what is no address is refused even if nobody is asked
    if not renew and missing(experiment, records) == 0:
        return path
    path.parent.mkdir(parents=True, exist_ok=True)
    with ExitStack() as held:
        held.callback(_remove_if_empty, path.parent)  # of another make of processor, if no trial has ended
        try:
            held.enter_context(files.alone(path))
        except files.InUse:
            raise ExperimentError(f"{name}: another run is writing its record") from None
        trials, done = experiment.trials(), _before(experiment, records, renew)

        def keep(to: Path) -> None:
            here = [trial for trial in trials if _key(trial) in done]
            write(to, name, Record(here, *map(list, zip(*(done[_key(trial)] for trial in here), strict=True))))

        failed: dict[str, list[Any]] = {}
        if lacking := [trial for trial in trials if _key(trial) not in done]:
            alone = getattr(experiment, "ALONE", False)
            connected = _client(scheduler, tls, workers, 1 if alone else len(lacking))
            with (
                connected as client,
                _prepared(client, experiment.run.__module__, bring),
                tqdm(total=len(trials), initial=len(trials) - len(lacking), desc=name, disable=not progress) as bar,
            ):
                for trial, outcome in _outcomes(client, experiment.run, lacking, alone):
                    if isinstance(outcome, BaseException):
                        failed.setdefault(_said(outcome), []).append(trial)
                        continue
                    done[_key(trial)] = outcome
                    keep(part)
                    bar.update()
        if failed:
            raise ExperimentError(f"{name}: {_told(failed, len(trials))}")
        keep(path)
        part.unlink(missing_ok=True)
    return path


def _before(experiment: ModuleType, records: Path, renew: bool) -> dict[str, Any]:
    """What a run need not do again. One that renews goes on where the last run was interrupted, and else begins anew."""
    if renew and not _places(experiment, records)[2].is_file():
        return {}
    try:
        return _done(experiment, records)
    except ExperimentError:
        if not renew:
            raise
        return {}


def _told(failed: dict[str, list[Any]], number: int) -> str:
    """How many of this number of trials failed; and for each message, one of its trials."""
    lines = [f"{sum(map(len, failed.values()))} of {number} trials failed"]
    for said, trials in failed.items():
        more = f" and {len(trials) - 1} more" if len(trials) > 1 else ""
        lines.append(f"{trials[0]}{more}: {said}")
    return "\n".join(lines)


def missing(experiment: ModuleType, records: Path = RECORDS) -> int:
    """How many trials are missing: in the record or, if a run was interrupted, in the file beside it from which it goes on.

    raises   ExperimentError if that file, or the record, is damaged
    """
    done = _done(experiment, records)
    lacks = sum(_key(trial) not in done for trial in experiment.trials())
    interrupted = _places(experiment, records)[2].is_file()
    return max(lacks, 1) if interrupted else lacks  # its last trial may be done, and the record is not written


def listed(experiment: ModuleType, records: Path = RECORDS) -> str:
    """Name, how far its record is, the minutes that its trials took together, and its question, in lines for the terminal."""
    name, trials = _places(experiment, records)[0], len(experiment.trials())
    try:
        lacks = missing(experiment, records)
        known = _done(experiment, records).values()
    except ExperimentError:
        state, took = "damaged", ""
    else:
        state = so_many(trials, "trial") if lacks == 0 else f"{trials - lacks} of {trials}"
        seconds = [seconds for *_, seconds in known if seconds is not None]
        took = f"{sum(seconds) / 60:.0f} min" if known and len(seconds) == len(known) else ""
    line = f"{name:<24} {state:>10} {took:>8}   {(experiment.__doc__ or '').splitlines()[0]}"
    return textwrap.fill(line, columns(), subsequent_indent="    ")


def _remove_if_empty(folder: Path) -> None:
    with suppress(OSError):
        folder.rmdir()


def other_processor(experiment: ModuleType, records: Path) -> str:
    """A processor on which trials of this record were run, if it is not the one at hand; or an empty string."""
    with suppress(ExperimentError):  # damaged: whoever does not make it anew is told
        here = circumstances()
        for _, about, _ in _done(experiment, records).values():
            if any(about.get(key, here[key]) != here[key] for key in ("machine", "make")):  # old records have no make
                return f"{about['machine']} ({about.get('make', 'of unknown make')})"
    return ""


def _places(experiment: ModuleType, records: Path) -> tuple[str, Path, Path]:
    """The name of an experiment, its record, and the file beside it from which an interrupted run goes on."""
    name = experiment.__name__.rpartition(".")[2]
    return name, records / f"{name}.json", records / f".{name}.part.json"


def _said(error: BaseException) -> str:
    """What went wrong in the first place; for a worker that lacks a module, which one."""
    first = error
    while first.__cause__ or first.__context__:
        first = first.__cause__ or first.__context__  # type: ignore[assignment]
    if isinstance(first, ModuleNotFoundError):
        return f"the workers lack the module {first.name}"
    return f"{type(error).__name__}: {error}"


def _key(trial: Any) -> str:
    return digest(plain(trial))


def _done(experiment: ModuleType, records: Path) -> dict[str, Any]:
    """By the digest of its trial: result, machine and seconds of what has been run, of these trials or of others.

    It is read from the file of an interrupted run, if there is one, and else from the record.
    """
    _, path, part = _places(experiment, records)
    file = part if part.is_file() else path
    if not file.is_file():
        return {}
    try:
        record = read(file, experiment.Trial)
    except ValueError as error:  # damaged, or with other fields: nobody runs for hours because of that unasked
        raise ExperimentError(str(error)) from None
    rows = zip(record.trials, record.results, record.machines, record.seconds, strict=True)
    return {_key(trial): kept for trial, *kept in rows}


@contextmanager
def _client(scheduler: str | None, tls: dict[str, str] | None, workers: int | None, trials: int) -> Iterator[Any]:
    """A connection to the scheduler, or to processes of our own that end with it."""
    try:
        import dask
        from distributed import Client, LocalCluster
    except ImportError as error:
        raise ExperimentError(f"trials are spread by Dask: pip install distributed ({error})") from None
    if scheduler is None:
        refuse_no_loopback()
        with dask.config.set(LOCAL), ExitStack() as stack:
            with ctrl_c_waits():  # else every worker would tell of it, in thirty lines
                cluster = LocalCluster(
                    n_workers=min(workers or cores(), trials),
                    threads_per_worker=1,
                    host=LOOPBACK,
                    dashboard_address=f"{LOOPBACK}:0",
                    scheduler_kwargs={"dashboard": False},
                    silence_logs=logging.CRITICAL,
                )
                stack.enter_context(cluster)
            yield stack.enter_context(Client(cluster))
        return
    try:
        # if nobody listens, Dask would go on trying
        socket.create_connection(_host_and_port(scheduler), timeout=5).close()
        client = Client(scheduler, timeout=5, security=_security(tls))
    except (OSError, ValueError, TypeError) as error:
        raise ExperimentError(f"--scheduler {scheduler}: {error}") from None
    with client:
        yield client


def _host_and_port(scheduler: str) -> tuple[str, int]:
    """The two parts of an address. Raises ExperimentError if it has another form."""
    try:
        from distributed.comm.addressing import get_address_host_port

        host, port = get_address_host_port(scheduler, strict=True)
        if not 0 < port < 2**16:
            raise ValueError(f"port {port} should be at most {2**16 - 1}")
    except ImportError as error:
        raise ExperimentError(f"trials are spread by Dask: pip install distributed ({error})") from None
    except ValueError as error:
        raise ExperimentError(f"--scheduler {scheduler}: {error}; write tcp://HOST:PORT") from None
    return host, port


def _security(tls: dict[str, str] | None) -> Any:
    """What Dask's configuration says, or these files."""
    from distributed import Security

    if not tls:
        return None
    return Security(
        tls_ca_file=tls["ca_file"], tls_client_cert=tls["cert"], tls_client_key=tls["key"], require_encryption=True
    )


@contextmanager
def _prepared(client: Any, module: str, bring: Sequence[ReaderFile]) -> Iterator[None]:
    """In this block every worker has run the reader's files, and every one that begins later, in place of one that has died.

    raises   ExperimentError if a worker lacks a module of this package: a trial that it can't even read is never answered
    """
    from distributed import WorkerPlugin

    if module.startswith("minitransformer."):
        for answer in client.run(importlib.import_module, module, on_error="return").values():
            if isinstance(answer, Exception):
                raise ExperimentError(_said(answer))

    class Brought(WorkerPlugin):
        def __init__(self, file: ReaderFile) -> None:
            self.file = file

        def setup(self, worker: Any) -> None:
            self.file.bring()

    names = [f"minitransformer: {file.path}" for file in bring]
    try:
        for name, file in zip(names, bring, strict=True):
            try:
                client.register_plugin(Brought(file), name=name)
            except ValueError as error:
                raise ExperimentError(f"a worker can't run it: {error}") from None
        yield
    finally:
        for name in names:
            with suppress(Exception):  # it was never there, or the workers are gone
                client.unregister_worker_plugin(name)


def _outcomes(client: Any, work: Any, trials: list[Any], alone: bool) -> Iterator[tuple[Any, Any]]:
    """Each trial with its result and machine, or with its exception, in the order in which they end."""
    from distributed import as_completed

    if alone:  # one after the other, on the same worker as long as it lives
        known = list(client.scheduler_info(n_workers=-1)["workers"])
        # what may be moved to others is not moved to one that begins later, in place of the only one
        on_one = {"workers": known[:1], "allow_other_workers": True} if len(known) > 1 else {}
        for trial in trials:
            yield trial, _ended(client.submit(on_this_core, work, trial, True, pure=False, **on_one))
        return
    jobs = {client.submit(on_this_core, work, trial, pure=False): trial for trial in trials}
    for job in as_completed(jobs):
        yield jobs[job], _ended(job)


def _ended(job: Any) -> Any:
    try:
        return job.result()
    except Exception as error:
        return error


def on_this_core(work: Any, trial: Any, alone: bool = False) -> tuple[Any, dict[str, Any], float]:
    """The result of a trial, the machine that it was made on, and its seconds; on one core, unless it is alone there."""
    start = time.monotonic()
    with nullcontext() if alone else on(1):
        return work(trial), circumstances(), round(time.monotonic() - start, 1)
