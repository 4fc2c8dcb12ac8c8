"""The benchmark of the replay: its arithmetic, its pages, and a run of it on a tiny graph."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest
import replay
import replay_bottlenecks
import replay_cases
import replay_grid
import replay_parts
import replay_runs
import replay_summary
from replay_cases import Case, Graph
from replay_disk import Disk, held_back, home_of
from replay_grid import BASES, Point

from gloader.errors import ConfigError
from gloader.replay.changes import Ratio, parse_changes
from gloader.ssd_store.cost.profile import remembered_profile

if TYPE_CHECKING:
    from pathlib import Path

_DISK = Disk(read_bytes_per_s=400e6, reads_per_s=20_000, write_bytes_per_s=100e6)
_CASE = Case(
    name="some",
    graph=Graph(nodes=3_000, edges=30_000, dim=16),
    loader={
        "fanouts": [3, 3],
        "batch_size": 32,
        "features": "ssd",
        "cache": 0.2,
        "memory_budget": 50_000_000,
    },
    model={"name": "graphsage", "hidden": 4},
    disk=_DISK,
    compute=4,
)


# --- what is run


def test_pairs_lie_along_an_axis_through_a_base_both_ways_and_none_twice() -> None:
    pairs = replay_grid.pairs_of(BASES[:1])
    counts = {axis: sum(pair.axis == axis for pair in pairs) for axis in replay_grid.AXES}
    assert counts == {"cache": 12, "superbatch": 6, "threads": 2, "disk": 6, "compute": 2}
    assert len({(pair.known, pair.asked) for pair in pairs}) == 28
    for pair in pairs:
        assert replace(pair.known, **{pair.axis: getattr(pair.asked, pair.axis)}) == pair.asked
        assert pair.known != pair.asked
    assert len(replay_grid.points_of(pairs)) == 10
    assert replay_grid.pairs_of(BASES[:1] * 2) == pairs


@pytest.mark.parametrize(
    ("axis", "value", "words"),
    [
        ("cache", 40, "cache=40%"),
        ("superbatch", 8, "superbatch=8"),
        ("threads", 1, "threads=1"),
        ("disk", 0.25, "disk=0.25x"),
        ("compute", 2, "compute=2x"),
    ],
)
def test_a_change_is_what_makes_one_run_the_other(axis: str, value: Any, words: str) -> None:
    known = Point(cache=10, superbatch=32, threads=2, disk=1.0, compute=1)
    asked = replace(known, **{axis: value})
    assert known.change(axis, asked) == words
    assert set(parse_changes(words).values) == {axis}
    back = parse_changes(asked.change(axis, known)).values[axis]
    assert back == {"cache": 0.1, "disk": Ratio(factor=4), "compute": Ratio(factor=0.5)}.get(
        axis, getattr(known, axis)
    )


def test_a_run_of_a_point_has_its_disk_cache_and_model() -> None:
    fastest = replace(BASES[0], disk=1.0)
    slow, fast = replace(fastest, disk=0.25, compute=2, cache=5).case, fastest.case
    assert slow.disk is not None
    assert fast.disk is not None
    assert slow.disk == fast.disk.scaled(reads=0.25, writes=0.25)
    assert (slow.compute, slow.loader["cache"]) == (2, 0.05)


def test_names_of_runs_differ_and_their_folders_follow_from_all_that_they_are() -> None:
    every = [
        *replay_cases.unchanged_cases(),
        *(one.case for one in replay_bottlenecks.bottlenecks()),
        *replay_cases.default_cases(),
        *(point.case for point in replay_grid.points_of(replay_grid.pairs_of(BASES))),
    ]
    assert len({case.name for case in every}) == len(every)
    assert _CASE.key == replace(_CASE).key
    assert _CASE.key != replace(_CASE, epochs=4).key
    assert _CASE.key != _CASE.changed("some", loader={"cache": 0.3}).key
    assert _CASE.key != replace(_CASE, disk=_DISK.scaled(writes=2)).key


def test_there_are_as_many_cases_as_the_page_promises() -> None:
    unchanged = replay_cases.unchanged_cases()
    assert len(unchanged) >= 12
    assert {case.ranks for case in unchanged} == {1, 2}
    assert {case.model["name"] for case in unchanged} >= {"graphsage", "gcn", "gat"}
    assert len(replay_bottlenecks.bottlenecks()) == 10
    assert len(replay_cases.default_cases()) == 6


# --- disks


def test_a_disk_is_read_as_its_requests_or_its_bytes_allow_whichever_is_less() -> None:
    profile = _DISK.profile
    assert (profile.random_reads_per_s, profile.medium_reads_per_s) == (20_000, 20_000)
    assert profile.wide_reads_per_s == 400e6 / 65_536
    assert (profile.read_bytes_per_s, profile.write_bytes_per_s) == (400e6, 100e6)
    assert not profile.is_doubtful
    assert _DISK.scaled(random=0.05).profile.read_bytes_per_s == 1_000 * 256 * 1024
    assert _DISK.scaled(reads=2, random=3, writes=4) == Disk(
        read_bytes_per_s=800e6, reads_per_s=120_000, write_bytes_per_s=400e6
    )


def test_runs_of_a_disk_have_its_profile_whatever_a_run_before_left_there(tmp_path: Path) -> None:
    home = home_of(tmp_path, _DISK)
    (home / "left").write_text("")
    assert home_of(tmp_path, _DISK) == home
    assert not (home / "left").exists()
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("GLOADER_HOME", str(home))
        assert remembered_profile(tmp_path) == _DISK.profile
    assert home_of(tmp_path, None) == tmp_path / "home"


def test_where_no_disk_can_be_held_back_a_run_says_why_and_is_not_made(tmp_path: Path) -> None:
    with (
        pytest.raises(
            ConfigError, match=r"cannot be held back to 400 MB/s .*control group blkio of version 1"
        ),
        held_back(tmp_path, _DISK, tmp_path / "nowhere"),
    ):
        pytest.fail("it goes on")
    with held_back(tmp_path, None, tmp_path / "nowhere") as group:
        assert group is None


# --- advice


@pytest.mark.parametrize(
    ("what_if", "best"),
    [
        (
            {"threads=2": 9.9, "disk.random=4x": 5.2, "disk=4x": 5.0},
            "disk.random=4x",
        ),  # as good, and less is asked
        ({"threads=2": 9.9, "disk.random=4x": 5.6, "disk=4x": 5.0}, "disk=4x"),
        ({"threads=2": 9.9, "disk=4x": 9.8}, ""),  # nothing to speak of
        ({}, ""),
    ],
)
def test_the_advice_is_the_least_that_is_about_as_good_as_the_best(
    what_if: dict[str, float], best: str
) -> None:
    assert replay_parts.advised(what_if, epoch_s=10.0) == best


def test_advice_is_followed_as_somebody_would_who_has_this_machine() -> None:
    def followed(words: str, settings: dict[str, Any] | None = None) -> Case | None:
        return replay_parts.follow(_CASE, parse_changes(words), settings or {}, cores=2)

    assert followed("disk=2x") == replace(_CASE, name="some, disk=2x", disk=_DISK.scaled(reads=2, writes=2))
    assert followed("disk.random=2x") == replace(
        _CASE, name="some, disk.random=2x", disk=_DISK.scaled(random=2)
    )
    assert followed("disk.write=2x") == replace(
        _CASE, name="some, disk.write=2x", disk=_DISK.scaled(writes=2)
    )
    assert followed("compute=0.25x") == replace(_CASE, name="some, compute=0.25x", compute=1)
    assert followed("cores=2") == replace(_CASE, name="some, cores=2", cores=2)
    assert followed("threads=3") == _CASE.changed("some, threads=3", loader={"threads": 3})
    cached = followed("cache=2x", {"cache": 12_345})
    assert cached == _CASE.changed("some, cache=2x", loader={"cache": 12_345})
    narrow = followed("dtype=float16")
    assert narrow is not None
    assert narrow.graph == replace(_CASE.graph, dtype="float16")
    assert [followed(words) for words in ("cores=3", "compute=0.1x", "gpu=4x", "ranks=2")] == [None] * 4
    fast = replace(_CASE, disk=None)
    assert replay_parts.follow(fast, parse_changes("disk=2x"), {}, cores=2) is None


# --- figures


def _pair(axis: str, error: float | None, distance: float = 0.5) -> dict[str, Any]:
    pair: dict[str, Any] = {"axis": axis, "known": f"{axis} A", "asked": "B", "change": f"{axis}=2"}
    if error is None:
        return pair | {"refused": "too noisy | by far"}
    return pair | {
        "known_s": 1.0 + distance, "measured_s": 1.0, "predicted_s": 1.0 + error, "error": error, "distance": distance,
    }  # fmt: skip


def test_errors_are_those_of_each_axis_with_their_sign_and_what_there_was_to_know() -> None:
    pairs = [_pair("cache", 0.02), _pair("cache", -0.06, -0.2), _pair("cache", None), _pair("disk", 0.01)]
    found = replay_summary.summarize_pairs(pairs)
    assert list(found) == ["all", "cache", "disk"]
    assert found["cache"] == {
        "pairs": 3, "refused": 1, "median": 0.04, "worst": -0.06, "worst_of": "cache A, cache=2",
        "median_distance": 0.35,
    }  # fmt: skip
    assert (found["all"]["median"], found["all"]["worst"]) == (0.02, -0.06)
    nothing = replay_summary.summarize_pairs([_pair("disk", None)])
    assert (nothing["disk"]["median"], nothing["disk"]["worst"]) == (None, None)


def _result() -> dict[str, Any]:
    run = {"measured_s": 2.0, "replayed_s": 2.02, "error": 0.01, "others_share": 0.3}
    run["unexplained"] = {"epoch": -0.01, "gather": 0.004, "sample": -0.12, "compute": 0.03}
    held_up = {
        "name": "slow disk", "why": "a disk of 1 B/s", "parts": {"sweep": 3.0, "compute": 1.0}, "replayed_s": 4.0,
        "advised": "disk=4x", "is_named": {"part": True, "remedy": True}, "measured_s": 4.1,
        "predicted_after_s": 1.1, "measured_after_s": 1.0, "error": 0.1, "gain_said": 0.72, "gain_had": 0.76,
    }  # fmt: skip
    wrong = held_up | {
        "name": "one core",
        "is_named": {"part": True, "remedy": False},
        "not_followed": "no cores",
    }
    del wrong["error"]
    tuned = {
        "name": "tight",
        "default_s": 3.3,
        "tuned_s": 3.0,
        "predicted_s": 3.1,
        "ratio": 1.1,
        "change": "cache=1",
    }
    return {
        "command": "python replay.py",
        "commit": "abc",
        "parts": {
            "unchanged": {"runs": {"memory": {"rounds": [run, {"failed": "exit 1: a | b"}]}}},
            "cross": {
                "pairs": [_pair("cache", 0.02), _pair("disk", -0.2)],
                "runs": {"A": {"rounds": [{"others_share": 0.02}, {"failed": "no"}]}},
            },
            "bottlenecks": {"found": [held_up, wrong, {"name": "lost", "why": "?", "failed": "no"}]},
            "defaults": {"found": [tuned, {"name": "loose", "failed": "no"}, tuned | {"default_s": 3.2}]},
        },
    }


def test_a_page_has_the_figures_of_each_part_and_holds_them_against_the_aims() -> None:
    page = replay_summary.markdown(_result())
    for line in (
        "| memory | 2 s | 2.02 s | +1.0% | sample -12%, compute +3% | **0.30** |",
        "| memory | exit 1: a / b | | | | |",
        "Within 3%: 1 of 1 runs.",
        "| disk | 1 | 0 | 20.0% | -20.0% | disk A, disk=2 | 50% |",
        "Median at most 5%: no.",
        "Worst at most 12%: no.",
        "| cache A | cache=2 | 1.5 s | 1.02 s | 1 s | +2.0% |",
        "| slow disk: a disk of 1 B/s | sweep 75% | disk=4x | yes | 4.1 s | 1.1 s | 1 s | +10.0% | 72% | 76% | +5.6% |",
        "| one core: a disk of 1 B/s | sweep 75% | disk=4x | no | 4.1 s | no cores |  |  |  |  |  |",
        "Named right: 1 of 3. Gains within 10%: 1 of 1; worst 5.6%. Seconds within 10%: 1 of 1; worst 10.0%.",
        "| tight | 3.3 s | 3 s with cache=1 | 3.1 s | 1.10 | yes |",
        "As it comes over tuned, of medians: tight 1.08. Within 10%: 1 of 1.",
    ):
        assert line in page.splitlines()


def test_a_page_says_where_runs_were_not_alone() -> None:
    result = _result()
    warning = (
        "**Not for the record**: during 1 of {} runs other processes used the cores too, {} of them at worst."
    )
    # The run of part unchanged alone.
    assert replay_summary.markdown(result).count("**Not for the record**") == 1
    assert warning.format(1, "0.30") in replay_summary.markdown(result)
    result["parts"]["cross"]["runs"]["A"]["rounds"].append({"others_share": 0.9})
    result["parts"]["bottlenecks"]["found"][0]["others_shares"] = [0.0, 0.4, 0.0]
    page = replay_summary.markdown(result)
    assert warning.format(2, "0.90") in page
    assert warning.format(3, "0.40") in page


def test_what_is_recorded_has_no_paths_of_a_machine() -> None:
    run = {
        "epoch_s": [1.0],
        "trace": "/somewhere/trace.json",
        "explain": "much",
        "parts": ({"errors": "why"},),
    }
    assert replay.for_the_record({"rounds": [run]}) == {"rounds": [{"epoch_s": [1.0], "parts": [{}]}]}


def test_a_picture_has_a_point_for_each_prediction_and_needs_one(tmp_path: Path) -> None:
    kinds = [kind for kind, _, _ in replay_summary.points(_result())]
    assert kinds == ["unchanged", "cache", "disk", "advice"]
    assert ("advice", 1.0, 1.1) in replay_summary.points(_result())
    path = tmp_path / "scatter.svg"
    assert not replay_summary.draw_scatter({"parts": {}}, path)
    assert replay_summary.draw_scatter(_result(), path)
    assert path.read_text().count("<circle") + path.read_text().count("<polygon") >= 4 + 4  # with the legend


def test_why_a_run_failed_is_the_error_and_not_the_notes_below_it() -> None:
    errors = "Traceback ...\ngloader.errors.BudgetError: too little\nin stage stage, epoch 0, batch 1\n"
    assert replay_runs.why(errors) == "gloader.errors.BudgetError: too little"
    assert replay_runs.why("Killed\n") == "Killed"
    assert replay_runs.why("") == "nothing was said"


def test_what_others_used_is_what_the_machine_used_without_any_of_the_ranks() -> None:
    rank = {"epoch_s": [2.0, 2.0], "all_cpu_s": 9.0, "own_cpu_s": 3.0, "stolen_cpu_s": 0.4, "peak_bytes": 10}
    found = replay_runs.summed([rank, rank | {"own_cpu_s": 4.0, "peak_bytes": 11}], "trace.json")
    assert (found["others_share"], found["stolen_share"], found["peak_bytes"]) == (0.5, 0.1, 21)


# --- a run


def test_unknown_parts_and_bases_are_refused(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    common = ["--workdir", str(tmp_path)]
    for words, text in ((["--parts", "all"], "--parts: all unknown"), (["--bases", "9"], "allowed: 1 to 3")):
        with pytest.raises(SystemExit):
            replay.read_arguments([*common, *words])
        assert text in capsys.readouterr().err


def test_a_run_is_made_once_replayed_and_kept_unless_it_is_to_be_made_anew(tmp_path: Path) -> None:
    case = replace(_CASE, disk=None, compute=2, epochs=2)
    shop = replay_runs.Workshop(workdir=tmp_path)
    (run,) = shop.run_all([case])["some"]
    assert len(run["epoch_s"]) == 2
    assert run["batches"] > 1
    replayed = replay_parts._replayed(run)
    assert "failed" not in replayed
    # What the loop took is what the recording says, but for what the loop does between two batches of the loader.
    assert replayed["measured_s"] <= run["epoch_s"][1]
    assert set(replayed["unexplained"]) > {"compute", "epoch"}
    assert shop.run(case) == run
    assert shop.is_kept(case)
    assert not shop.is_kept(replace(case, epochs=3))
    assert not replay_runs.Workshop(workdir=tmp_path, rounds=2).is_kept(case)
    assert not replay_runs.Workshop(workdir=tmp_path, is_again=True).is_kept(case)


def test_a_run_that_fails_says_why_and_is_not_kept(tmp_path: Path) -> None:
    case = replace(_CASE, disk=None, loader=_CASE.loader | {"memory_budget": 1_000})
    shop = replay_runs.Workshop(workdir=tmp_path, rounds=3)
    (run,) = shop.run_all([case])["some"]
    assert "BudgetError" in run["failed"]
    assert not shop.is_kept(case)
