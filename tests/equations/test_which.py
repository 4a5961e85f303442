"""The equation of chapter 20, by which kinds of attention are drawn against their times."""

from minitransformer.experiments.table import Table, table

BETTER = {"text": min}  # bits; in all other tasks a score is a share of right answers


def test_quality_of_a_kind():
    """The mean of (s − b)/(s* − b) over the tasks that a kind was run on: 0 for the bag of tokens, at most 1."""
    found: Table = table()

    def mean(row, task):
        return sum(row.scores[task]) / len(row.scores[task])

    for row in found:
        shares = []
        for task in found.bag.scores:
            if task in row.scores:
                best = BETTER.get(task, max)(mean(kind, task) for kind in found if task in kind.scores)
                s, b = mean(row, task), mean(found.bag, task)
                shares.append((s - b) / (best - b))
        quality = sum(shares) / len(shares)
        assert abs(found.quality(row) - quality) < 1e-12
        assert quality <= 1
    assert found.quality(found.bag) == 0
