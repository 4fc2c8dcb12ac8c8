"""Values of flags, as users write them."""

from __future__ import annotations

import pytest

from gloader.cli.main import build_app, main
from gloader.config import loader_defaults
from gloader.core.flag_values import as_flags, parse_fanout, parse_share, parse_size_or_auto
from gloader.errors import ConfigError


@pytest.mark.parametrize(
    ("text", "fanout"),
    [
        ("15,10,5", (15, 10, 5)),
        ("[15, 10]", (15, 10)),
        ("-1", (-1,)),
        ("-1,5", (-1, 5)),
        ("0", (0,)),
        ("10 5", (10, 5)),
    ],
)
def test_fanout(text: str, fanout: tuple[int, ...]) -> None:
    assert parse_fanout(text) == fanout


@pytest.mark.reliability("C9")
@pytest.mark.parametrize("text", ["", ",", "5,x", "1.5", "-2", "5,-3", "ten"])
def test_malformed_fanout_says_how_to_write_one(text: str) -> None:
    with pytest.raises(ConfigError, match=r"is not a fan-out; write one whole number per layer.*15,10,5"):
        parse_fanout(text)


def test_share_is_a_fraction_and_a_size_is_bytes() -> None:
    assert parse_share("10%") == pytest.approx(0.1)
    assert isinstance(parse_share("100%"), float)
    assert parse_share("2GB") == 2_000_000_000
    assert isinstance(parse_share("1000"), int)


def test_share_above_everything_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"'101%' is more than 100%"):
        parse_share("101%")


def test_auto_is_a_size_where_it_may_be() -> None:
    assert parse_size_or_auto("auto") == "auto"
    assert parse_size_or_auto("4GB") == 4_000_000_000
    with pytest.raises(ConfigError, match="'automatic' is not a size"):
        parse_size_or_auto("automatic")


@pytest.mark.reliability("J10")
@pytest.mark.parametrize(
    "flag", ["--hidden", "--max-gap", "--fanout", "--epochs", "--batch-size", "--superbatch", "--threads"]
)
def test_numbers_of_twenty_digits_are_refused_by_name(flag: str, capsys: pytest.CaptureFixture[str]) -> None:
    words = ["train", "--dataset", "synthetic:community,nodes=40,edges=80,dim=2,classes=2,seed=77"]
    assert main([*words, flag, "9" * 20]) == 2
    assert "9" * 20 in capsys.readouterr().err


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ('cache="2.56MB" would make it 1 s', "--cache 2.56MB would make it 1 s"),
        ("no cache= would help; superbatch=64 too", "no --cache would help; --superbatch 64 too"),
        ("use topology='sweep', 'direct' or 'auto'", "use --topology sweep, 'direct' or 'auto'"),
        ('Give memory_budget="1.2GB" or more', "Give --memory-budget 1.2GB or more"),
        ("device_cache=True, io_strategy='auto'.", "--device-cache, --io-strategy auto."),
        # Both forms are said, or it is none of a command line.
        ("--features auto (in Python features='auto')", "--features auto (in Python features='auto')"),
        ("one more number in --fanout (fanouts=)", "one more number in --fanout (fanouts=)"),
        ("gloader.Loader(ds, cache=5)", "gloader.Loader(ds, cache=5)"),
        ("synthetic:rmat,seed=5 and nodes=7", "synthetic:rmat,seed=5 and nodes=7"),
        ("a == b, cache==3", "a == b, cache==3"),
    ],
)
def test_keywords_in_a_sentence_are_said_as_flags(text: str, said: str) -> None:
    assert as_flags(text, loader_defaults()) == said


def test_every_keyword_of_a_loader_that_is_a_flag_is_said_as_that_flag() -> None:
    """An epoch's line advised `cache=2.56MB`, which no command line takes."""
    flags = {
        argument.keys[-1]: argument.name
        for argument in build_app()["train"].assemble_argument_collection()
        if argument.parse
        and argument.name.startswith("--")
        and not argument.name.startswith("--embed")  # EmbedConfig has a cache of its own
        and set(argument.keys[-1:]) & loader_defaults().keys()
    }
    assert len(flags) > 20
    assert {name: as_flags(f"{name}=", loader_defaults()) for name in flags} == flags
