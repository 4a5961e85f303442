"""What can be chosen by name is listed in lines as wide as the terminal: each with its options, and all of one."""

import inspect
import re

import pytest

from minitransformer.attention.registry import ATTENTIONS
from minitransformer.cli.catalogue import SIZES, attentions, encodings, grid, measured, stacks
from minitransformer.experiments import makes
from minitransformer.models import LanguageModel
from minitransformer.models.registry import STACKS
from minitransformer.positions import AT_EMBEDDING, IN_ATTENTION
from minitransformer.registry import named, options

ENCODINGS = {**AT_EMBEDDING, **IN_ATTENTION}
LISTS = [(attentions, ATTENTIONS), (encodings, ENCODINGS), (stacks, STACKS)]


@pytest.mark.parametrize(("listed", "registry"), LISTS)
def test_the_list_is_narrow_and_names_everything_with_its_options(listed, registry):
    said = listed()
    assert max(map(len, said.splitlines())) <= 100
    starts = [k for k, line in enumerate(said.splitlines()) if not line.startswith(" ")]
    entries = [
        " ".join(" ".join(said.splitlines()[a:b]).split()) for a, b in zip(starts, [*starts[1:], None], strict=True)
    ]
    assert len(entries) == len(registry)
    for entry, (name, maker) in zip(entries, registry.items(), strict=True):
        assert entry.startswith(f"{name} ")
        first = inspect.getdoc(named("it", registry, name, SIZES)).splitlines()[0]
        assert " ".join(first.split()) in entry
        for option in options(maker, SIZES):
            assert f" {option}=" in entry.partition("options:")[2]


@pytest.mark.parametrize(("listed", "registry"), LISTS)
@pytest.mark.parametrize("wide", [60, 80])
def test_a_narrow_terminal_gets_narrow_lines(listed, registry, wide, monkeypatch):
    monkeypatch.setenv("COLUMNS", str(wide))
    assert wide - 15 < max(map(len, listed().splitlines())) <= wide


@pytest.mark.parametrize(("listed", "registry"), LISTS)
def test_all_of_one(listed, registry):
    for name in registry:
        said, about = listed(name), inspect.getdoc(named("it", registry, name, SIZES))
        assert said.startswith(f"{name} ")
        assert said.endswith(about)
        first = " ".join(about.splitlines()[0].split())
        assert " ".join(said.split()).count(first) == 1, "the list has its first line, here it stands below"
    with pytest.raises(ValueError, match="no 'nonsense'; there are"):
        listed("nonsense")


def test_the_grid_marks_what_goes_together():
    lines = {line.split()[0]: line for line in grid().splitlines() if "●" in line}
    columns = [line.rstrip().rfind(name) for line, name in zip(grid().splitlines(), ENCODINGS, strict=False)]
    assert lines.keys() - {"●"} == ATTENTIONS.keys()
    marks = {name: dict(zip(ENCODINGS, (lines[name][k] for k in columns), strict=True)) for name in ATTENTIONS}
    assert set(marks["softmax"].values()) == {"●"}
    assert (marks["etc"]["rope"], marks["etc"]["alibi"]) == ("●", "·")
    assert (marks["pooled"]["learned"], marks["pooled"]["rope"]) == ("●", "·")


@pytest.mark.parametrize(
    ("listed", "text", "refused", "message"),
    [
        (attentions, "softmax:norm=rms", "softmax:norm=layer", "^norm: no 'layer'; there are rms$"),
        (
            encodings,
            "rope:base=500",
            "rope:bass=5",
            "^positions: 'rope' has no option 'bass=5'; near it: base; it has ",
        ),
        (encodings, "rope:base=500", "rope:base", "^positions: base of 'rope' needs a value, as rope:base=…$"),
        (
            stacks,
            "transformer-xl:memory=128",
            "transformer-xl:memory=x",
            "^stack: memory of .* should be int, got 'x'$",
        ),
    ],
)
def test_all_of_one_with_options_is_its_entry(listed, text, refused, message):
    assert listed(text) == listed(text.partition(":")[0])
    with pytest.raises(ValueError, match=message):
        listed(refused)


def test_with_options_the_entry_is_of_these_and_claims_no_time():
    said = attentions("window:radius=500")
    assert said.startswith("window  ")
    assert "remembers the last 501 keys" in " ".join(said.split())
    assert "faster than dense" in attentions("window")
    assert "faster than dense" not in said


def test_options_can_be_given_as_they_are_listed():
    """What is printed as a default is what the option takes."""
    for registry in (ATTENTIONS, ENCODINGS, STACKS):
        for name, maker in registry.items():
            known = inspect.signature(maker).parameters
            usual = {
                o: known[o].default for o in options(maker, SIZES) if known[o].default is not inspect.Parameter.empty
            }
            text = f"{name}:{','.join(f'{o}={value}' for o, value in usual.items())}" if usual else name
            assert named("it", registry, text, SIZES) == named("it", registry, name, SIZES)


def test_causality_and_memory_are_told(monkeypatch):
    monkeypatch.setenv("COLUMNS", "100")
    said = {line.split()[0]: line for line in attentions().splitlines() if not line.startswith(" ")}
    assert "causal: yes; remembers keys and values; positions: any" in said["softmax"]
    assert "causal: never; can't decode" in said["linformer"]
    assert "causal: values only; reads all again" in said["reformer"]
    assert "causal: always; remembers the first 4 and the last 64 keys" in said["sinks"]
    assert "remembers the last 33 keys and values" in said["window"]
    assert "positions: at the embeddings, rope" in " ".join(attentions("linear").split())
    assert "needs β from X" in " ".join(attentions("delta").split())


def test_each_kind_says_from_which_length_on_it_is_faster():
    """... once if all makes of processor agree, else for each of them."""
    said, known = attentions(), makes("which_cost")
    for_each = [said.count(f"faster than dense on {make}: ") for make in known]
    assert 0 < max(for_each[1:]) <= for_each[0], "the first was timed on all"
    assert said.count("faster than dense: ") + for_each[0] == len(ATTENTIONS) - 1, "all but dense attention itself"
    assert "faster than dense: from 1,024 tokens on" in " ".join(attentions("linear").split())
    assert "faster than dense on zen-4: from 1,024 tokens on" in " ".join(attentions("pooled").split())
    assert "on zen-5" not in attentions("pooled"), "was not timed there"
    assert re.search("on zen-4: forwards never.* on zen-5: never", " ".join(attentions("indexer").split()))
    where = " ".join(measured().split())
    assert "on one core of each make of processor (zen-4: AMD EPYC" in where
    assert all(f"{make}: " in where for make in known)


def test_a_stack_says_which_blocks_it_takes():
    said = stacks()
    assert "plain           takes any blocks" in said
    assert "options: halting=basic, ponder=0.01, eps=0.01" in said
    for name, kind in STACKS.items():
        assert type(LanguageModel(stack=name, positions="rope").body) is kind
