"""The equation map has no gap and no dangling name, and README's table of chapters is what map and notebooks say."""

from minitransformer.book import equations


def test_the_map_has_no_gap(root):
    assert equations.check(root) == []


def test_the_table_of_chapters_in_readme_is_up_to_date(root):
    text = (root / "README.md").read_text(encoding="utf-8")
    assert equations.readme(root) == text, "run `minitransformer equations --readme`"
