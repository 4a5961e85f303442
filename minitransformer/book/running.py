"""A notebook from a clean kernel: what runs it, what surrounds it, and what is taken out of it before and after.

Chapters are run in this way (book.py), and the notebooks of a class (marking.py).
"""

import asyncio
import os
import signal
from collections.abc import AsyncIterator, Coroutine
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Any

from minitransformer.machine import refuse_no_loopback

LONGEST_START = 300  # seconds, of a kernel, on a machine that is busy
THREADS = ("NUMBA_NUM_THREADS", "OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS")


class BookError(Exception):
    """The book can't be run, or a cell failed; the message is for the reader."""


def run_tasks(work: Coroutine[Any, Any, Any]) -> Any:
    """`asyncio.run`, where SIGTERM cancels all tasks, as Ctrl-C does. Raises KeyboardInterrupt then, or the error of a task."""

    async def cancelled_by_sigterm() -> Any:
        all_of_it = asyncio.current_task()
        with suppress(RuntimeError):  # on Windows, and outside the main thread
            asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, lambda: all_of_it and all_of_it.cancel())
        return await work

    before = signal.getsignal(signal.SIGTERM)
    try:
        return asyncio.run(cancelled_by_sigterm())
    except asyncio.CancelledError:
        raise KeyboardInterrupt from None
    except BaseExceptionGroup as failed:
        raise failed.exceptions[0] from None
    finally:
        with suppress(TypeError, ValueError):  # a handler that is not Python's, and outside the main thread
            signal.signal(signal.SIGTERM, before)  # asyncio leaves none behind


def surroundings(copy: Path, figures: Path) -> dict[str, str]:
    """The environment of a kernel: the reader's, but for what would change outputs from run to run.

    Settings of IPython and Matplotlib are left out, hashes and dates are fixed; there is one thread, unless the reader sets more.
    """
    import matplotlib

    matplotlib.get_configdir()  # if home can't be written, it makes a temporary folder, which kernels use without a warning
    matplotlib.get_cachedir()
    empty = copy / ".surroundings"
    (empty / "matplotlibrc").touch()
    ours = {
        "IPYTHONDIR": str(empty),  # no start-up files, no history
        "MATPLOTLIBRC": str(empty / "matplotlibrc"),
        "MINITRANSFORMER_FIGURES": str(figures),
        "PYTHONHASHSEED": "0",
        "PYTHONUTF8": "1",
        "SOURCE_DATE_EPOCH": "1767225600",
        "TOKENIZERS_PARALLELISM": "false",
        "TQDM_DISABLE": "1",  # a progress bar leaves its times in the outputs
    }
    readers = {key: value for key, value in os.environ.items() if key != "MPLBACKEND"}
    return dict.fromkeys(THREADS, "1") | readers | ours


def without_editor(notebook: Any) -> None:
    """Remove what an editor or a kernel notes in a notebook: versions, times, what is folded."""
    notebook["metadata"] = {
        "kernelspec": {"display_name": "Python 3", "language": "python", "name": "python3"},
        "language_info": {"name": "python"},
    }
    for cell in notebook["cells"]:
        tags = cell["metadata"].get("tags")
        cell["metadata"] = {"tags": tags} if tags else {}


def clear(notebook: Any) -> None:
    """Remove what an earlier run has left."""
    for cell in notebook.cells:
        if cell.cell_type == "code":
            cell.outputs, cell.execution_count = [], None


def jupyter() -> tuple[Any, ...]:
    """The packages that run a notebook, imported only now: the rest of the book does not need them.

    raises   BookError for one that is not there, OSError where a kernel could not be reached
    """
    try:
        import ipykernel  # noqa: F401  (starts in a process of its own, where its absence would be a riddle)
        import nbformat  # noqa: F401
        from jupyter_client import AsyncKernelManager
        from nbclient import NotebookClient
        from nbclient.exceptions import CellExecutionError, CellTimeoutError, DeadKernelError
    except ImportError as error:
        raise BookError(f"notebooks need {error.name}: `make book`, or pip install nbclient ipykernel") from None
    refuse_no_loopback()

    failures = (CellExecutionError, CellTimeoutError, DeadKernelError)

    class Client(NotebookClient):
        """Runs a notebook in a folder, with its kernel's ports written at a place.

        Leaves Ctrl-C to us: nbclient handles it for each notebook, and the first that ends takes the handler from all.
        A kernel that dies at once gets a second try: another process may have taken a port that was free when it was chosen.
        """

        def __init__(self, notebook: Any, place: Path, folder: Path, **options: Any) -> None:
            super().__init__(
                notebook,
                km=AsyncKernelManager(kernel_name="python3", connection_file=str(place)),
                startup_timeout=LONGEST_START,
                record_timing=False,
                coalesce_streams=True,
                shutdown_kernel="immediate",  # a kernel that is asked to end tells on the terminal what it was doing
                extra_arguments=["--IPKernelApp.log_level=40"],
                resources={"metadata": {"path": str(folder)}},
                **options,
            )

        async def async_execute(self, reset_kc: bool = False, **options: Any) -> Any:
            try:
                return await super().async_execute(reset_kc, **options)
            except failures:
                if (us := asyncio.current_task()) and us.cancelling():  # not dead, but ended by us
                    raise asyncio.CancelledError from None
                raise

        @asynccontextmanager
        async def async_setup_kernel(self, **options: Any) -> AsyncIterator[None]:
            place = self.km.connection_file  # type: ignore[union-attr]
            try:
                try:
                    await self._start(**options)
                except RuntimeError as error:
                    if "died" not in str(error):
                        raise
                    self.km = AsyncKernelManager(kernel_name="python3", connection_file=place)
                    await self._start(**options)
                yield
            finally:
                if self.km is not None:
                    try:
                        await self._async_cleanup_kernel()
                    except KeyError as error:
                        if "_port" not in str(error):  # there was no room to write its ports
                            raise

        async def _start(self, **options: Any) -> None:
            await self.async_start_new_kernel(**options)
            await self.async_start_new_kernel_client()

    return Client, failures
