"""Ring attention: a text too long for one machine, on several that sit in a ring.

Worker r keeps its queries. Blocks of keys and values travel around: in step t it holds those of worker (r − t) mod W, joins
what its queries find there with what they have found so far (flash.py), and hands the block on. On the way back the same
blocks travel once more, and carry their gradients with them until they are home.

If attention is causal, some blocks lie ahead of all queries of a worker, who is idle then. So it matters which positions a
worker owns:

    contiguous    the r-th stretch of n/W positions        the last worker is busy in every step, the first in one
    striped       r, r + W, r + 2W, …                      all blocks are nearly half full
    zigzag        stretches r and 2W − 1 − r, of n/2W      all workers have the same work in every step
"""

import multiprocessing
from collections.abc import Callable, Generator, Sequence
from multiprocessing.connection import wait
from typing import Any

import numpy as np

from minitransformer.arrays import one_dtype, row_of_integers, scale_for
from minitransformer.attention.flash import find, finish, gradients, join, nothing_found
from minitransformer.pullback import Pullback
from minitransformer.ranges import NonNegative, so_many
from minitransformer.typing import Array, Float, Int, checked

Owners = Sequence[Any]  # the positions of each worker, an array
Worker = Generator[Any, Any, Any]  # yields what it hands on, is sent what it is handed, returns what it was asked for

# --------------------------------------------------------------------------------------------- schedules


@checked
def contiguous(n: NonNegative, workers: int) -> list[Array]:
    """The positions of each worker: for worker r the r-th of W stretches, as equal as can be."""
    return np.array_split(np.arange(n), workers)


@checked
def striped(n: NonNegative, workers: int) -> list[Array]:
    """The positions of each worker: for worker r every W-th, from r on."""
    return [np.arange(r, n, workers) for r in range(workers)]


@checked
def zigzag(n: NonNegative, workers: int) -> list[Array]:
    """The positions of each worker: of 2 W stretches, for worker r the r-th from the front and the r-th from the back."""
    parts = np.array_split(np.arange(n), 2 * workers)
    return [np.concatenate([parts[r], parts[-1 - r]]) for r in range(workers)]


def _refuse_other_than_positions(owners: Owners) -> None:
    if not len(owners):
        raise ValueError("owners: should be the positions of at least one worker")
    for r, own in enumerate(owners):
        row_of_integers(own, f"owners[{r}]")


@checked
def work(owners: Owners, *, causal: bool = True) -> Array:
    """How many pairs (i, j) count for worker r in step t, entry [t, r] of (W, W): its queries with keys of worker (r − t) mod W.

    A kernel that skips hidden pairs computes only these. `ring_attention` computes whole blocks, and hides pairs after that.
    raises   ValueError if there is no worker, or positions are no row of integers
    """
    _refuse_other_than_positions(owners)
    W = len(owners)
    pairs = np.zeros((W, W), np.int64)
    for t, r in np.ndindex(W, W):
        i, j = owners[r], owners[(r - t) % W]
        pairs[t, r] = (i[:, None] >= j).sum() if causal else len(i) * len(j)
    return pairs


@checked
def efficiency(pairs: Int[Array, "W W"]) -> float:
    """The share of their time in which workers work, if time is counted in `work` and a step takes as long as its slowest worker.

    W/(2W − 1) for contiguous stretches in the limit of long ones, (n + 1)/(n + W) for stripes, 1 for zigzag.
    raises   ValueError if no pair counts, as of an empty text
    """
    if not pairs.any():
        raise ValueError("pairs: no pair counts, so there is no work to share")
    return float(pairs.sum() / (pairs.shape[1] * pairs.max(1).sum()))


# ----------------------------------------------------------------------------------------------- workers


def _forward(own: Array, Q: Array, K: Array, V: Array, workers: int, causal: bool, scale: float) -> Worker:
    """A worker in the forward pass: yields the block that it hands on, returns Y and L of its queries."""
    found, held = nothing_found(Q, V), (own, K, V)
    for step in range(workers):
        theirs, K, V = held
        found = join(found, find(Q, K, V, _sees(own, theirs, causal), scale))
        if step < workers - 1:
            held = yield held
    return finish(found)


def _backward(
    own: Array, Q: Array, K: Array, V: Array, L: Array, D: Array, dY: Array, workers: int, causal: bool, scale: float
) -> Worker:
    """A worker in the backward pass: returns dQ of its queries, and dK and dV of its keys, which have visited all workers."""
    dQ, held = np.zeros_like(Q), (own, K, V, np.zeros_like(K), np.zeros_like(V))
    for _ in range(workers):
        theirs, K, V, dK, dV = held
        of_Q, of_K, of_V = gradients(Q, K, V, _sees(own, theirs, causal), scale, L, D, dY)
        dQ = dQ + of_Q
        held = yield theirs, K, V, dK + of_K, dV + of_V
    return dQ, held[3], held[4]


def _sees(own: Array, theirs: Array, causal: bool) -> Array | None:
    return own[:, None] >= theirs if causal else None


def in_turns(function: Callable[..., Worker], arguments: Sequence[tuple[Any, ...]]) -> list[Any]:
    """The results of the workers of a ring, which in each step work one after the other, in this process.

    They all take equally many steps.
    """
    workers, results = [function(*own) for own in arguments], []
    handed: list[Any] = [None] * len(workers)
    while len(results) < len(workers):
        given = []
        for worker, block in zip(workers, handed, strict=True):
            try:
                given.append(worker.send(block))
            except StopIteration as end:
                results.append(end.value)
        handed = given[-1:] + given[:-1]  # from worker r − 1
    return results


def in_processes(function: Callable[..., Worker], arguments: Sequence[tuple[Any, ...]]) -> list[Any]:
    """The results of the workers of a ring, each in a process of its own; blocks go from process to process.

    raises   ChildProcessError if a process ends before its time
    """
    context, W = multiprocessing.get_context("spawn"), len(arguments)
    inboxes = [context.Queue() for _ in range(W)]
    processes: list[Any] = []
    answers: dict[Any, int] = {}  # for each pipe, which worker is at the other end
    try:
        for r, own in enumerate(arguments):
            here, there = context.Pipe(duplex=False)
            answers[here] = r
            queues = inboxes[r], inboxes[(r + 1) % W]
            process = context.Process(target=_one_process, args=(function, own, *queues, there), daemon=True)
            process.start()
            processes.append(process)
            there.close()  # so that this end hears when the process is gone
        results: dict[int, Any] = {}
        while len(results) < W:
            ready: list[Any] = wait([here for here, r in answers.items() if r not in results])
            for answer in ready:
                try:
                    results[answers[answer]] = answer.recv()
                except EOFError:
                    raise ChildProcessError(
                        f"worker {answers[answer]} of {W} has ended without a result; what it said "
                        'stands above. Without `if __name__ == "__main__":` a script can\'t start processes'
                    ) from None
        return [results[r] for r in range(W)]
    finally:
        for process in processes:
            process.terminate()
            process.join()


def _one_process(function: Callable[..., Worker], own: tuple[Any, ...], inbox: Any, outbox: Any, answer: Any) -> None:
    """A worker in a process of its own: blocks come from the inbox and go to the outbox, its result goes to the pipe."""
    worker, block = function(*own), None
    while True:
        try:
            outbox.put(worker.send(block))
        except StopIteration as end:
            answer.send(end.value)
            return
        block = inbox.get()


# ------------------------------------------------------------------------------------------ the attention


class RingPullback(Pullback):
    """dQ, dK and dV, once more around the ring. D_i = ⟨dy_i, y_i⟩ and L_i belong to a query, and stay with its worker."""

    owners: tuple[Array, ...]
    Q: Array
    K: Array
    V: Array
    Y: Array
    L: Array
    causal: bool
    scale: float
    processes: bool

    def __call__(self, dY: Array) -> tuple[Array, Array, Array]:
        W, D = len(self.owners), np.vecdot(dY, self.Y)
        run = in_processes if self.processes else in_turns
        arguments = [
            (own, *_rows(own, self.Q, self.K, self.V), self.L[..., own], D[..., own], *_rows(own, dY), W, self.causal, self.scale)
            for own in self.owners
        ]  # fmt: skip
        results = run(_backward, arguments)
        return tuple(_together(self.owners, parts) for parts in zip(*results, strict=True))  # type: ignore[return-value]


def _rows(own: Array, *arrays: Array) -> list[Array]:
    return [np.take(X, own, -2) for X in arrays]


def _together(owners: Owners, parts: Sequence[Array]) -> Array:
    """The rows of all workers, each where it belongs."""
    return np.take(np.concatenate(parts, -2), np.argsort(np.concatenate(owners)), -2)


@checked
def ring_attention(
    Q: Float[Array, "*batch n d"],
    K: Float[Array, "*batch n d"],
    V: Float[Array, "*batch n dv"],
    owners: Owners,
    *,
    causal: bool = False,
    scale: float | None = None,
    processes: bool = False,
) -> tuple[Float[Array, "*batch n dv"], RingPullback]:
    """Softmax attention over the workers of a ring, each of which holds a part of the text.

    owners      the positions of each worker, every one once: contiguous(n, W), striped(n, W), zigzag(n, W) or others
    processes   whether each worker is a process of its own; otherwise they take turns in this one, with the same numbers. A
                script that starts processes needs its `if __name__ == "__main__":`
    source      Liu, Zaharia and Abbeel 2023; stripes: Brandon et al. 2023; zigzag as in zhuzilin/ring-flash-attention
    cost        O(n² d / W) time for each worker, and O(n d / W + n² / W²) memory, with the scores of a block. It sends 2 n d / W
                numbers in each of W − 1 steps, and in the backward pass 4 n d / W in each of W
    returns     Y and a pullback: dQ, dK, dV = pullback(dY)
    raises      TypeError for a wrong shape or dtype, ValueError if the positions are not those of the text, each once
    """
    one_dtype(Q=Q, K=K, V=V)
    _refuse_other_than_positions(owners)
    n, W = Q.shape[-2], len(owners)
    if not np.array_equal(np.sort(np.concatenate(owners)), np.arange(n)):
        raise ValueError(f"owners: {so_many(W, 'worker')} should have the positions 0 … {n - 1}, each once")
    scale = scale_for(Q.shape[-1], scale)
    run = in_processes if processes else in_turns
    results = run(_forward, [(own, *_rows(own, Q, K, V), W, causal, scale) for own in owners])
    Y = _together(owners, [Y for Y, _ in results])
    L = _together(owners, [L[..., None] for _, L in results])[..., 0]
    return Y, RingPullback(tuple(owners), Q, K, V, Y, L, causal, scale, processes)
