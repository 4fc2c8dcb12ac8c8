"""Settings: one home for every default, text and type, whichever way they are given."""

from __future__ import annotations

import ast
import inspect
import itertools
from dataclasses import asdict, fields
from pathlib import Path
from typing import Any, get_args, get_origin, get_type_hints

import pytest
import torch
from cyclopts import App

import gloader
from gloader import config
from gloader.cli.main import build_app
from gloader.cli.recipe import flatten
from gloader.config import LoaderKeywords, LoaderSettings, ObjectSettings, TrainSettings, loader_defaults
from gloader.core.fanouts import FanoutsLike
from gloader.core.flag_values import NOT_A_FLAG, Size, SizeOrAuto, SizeOrShare
from gloader.dataset import Dataset
from gloader.errors import ConfigError

OTHERS: dict[str, Any] = {
    "fanouts": (3, 2),
    "batch_size": 7,
    "shuffle": False,
    "drop_last": True,
    "seed": 5,
    "seed_blocks": 2,
    "seed_window": 2,
    "sampler": "labor",
    "layout": "merged",
    "edge_features": "none",
    "time_strategy": "last",
    "time_bound": "<=",
    "time_window": 3600,
    "memory_budget": 8_000_000_000,
    "features": "ssd",
    "topology": "sweep",
    "cache": 4096,
    "policy": "lru",
    "spill_budget": 0,
    "spill_dir": Path("elsewhere"),
    "superbatch": 9,
    "superbatch_reset": True,
    "buffers": 4,
    "io_strategy": "packed",
    "exchange": "never",
    "max_gap": 512,
    "io": "buffered",
    "verify": "off",
    "device": "cuda:1",
    "device_cache": 1000,
    "device_hotness": "vip",
    "sampling_device": "cuda",
    "sharing": "private",
    "rank": 1,
    "world_size": 2,
    "threads": 3,
    "stall_timeout_s": 1.5,
    "epochs": 4,
    "trace": True,
}


def _groups(settings: LoaderSettings | TrainSettings) -> dict[str, Any]:
    return {field.name: getattr(settings, field.name) for field in fields(settings)}


def _hints() -> dict[str, Any]:
    groups = _groups(LoaderSettings()).values()
    return {
        name: hint
        for group in groups
        for name, hint in get_type_hints(type(group), include_extras=True).items()
    }


def test_keywords_make_settings_and_settings_give_the_keywords_back() -> None:
    settings = LoaderSettings.of(**OTHERS)
    assert settings.keywords() == OTHERS
    assert LoaderSettings.of(**settings.keywords()) == settings
    assert OTHERS.keys() == loader_defaults().keys()
    assert all(value != loader_defaults()[name] for name, value in OTHERS.items())


def test_without_keywords_all_is_as_declared() -> None:
    assert LoaderSettings.of() == LoaderSettings()
    assert LoaderSettings().keywords() == loader_defaults()


def test_some_settings_are_changed_and_the_others_kept() -> None:
    changed = LoaderSettings.of(**OTHERS).changed(memory_budget="1GB", seed=6)
    assert changed.keywords() == {**OTHERS, "memory_budget": 10**9, "seed": 6}


def test_sizes_are_read_once_at_the_door() -> None:
    settings = LoaderSettings.of(memory_budget="8GB", cache="10%", device_cache="4KB", max_gap=0, fanouts=[2])
    assert settings.memory.memory_budget == 8 * 10**9
    assert settings.memory.cache == pytest.approx(0.1)
    assert settings.memory.cache_bytes(1000) == 100
    assert settings.memory.cache_bytes(0) == 0
    assert (settings.device.device_cache, settings.reading.max_gap) == (4000, 0)
    assert settings.sampling.fanouts == (2,)
    assert LoaderSettings.of(**settings.keywords()) == settings
    with pytest.raises(ConfigError, match="memory_budget: '8QB' is not a size"):
        LoaderSettings.of(memory_budget="8QB")
    with pytest.raises(ConfigError, match="max_gap: -5 is not a size"):
        LoaderSettings.of(max_gap=-5)


@pytest.mark.parametrize(
    ("keywords", "message"),
    [
        ({"batch_size": 4.0}, r"batch_size is 4\.0; it must be a whole number"),
        ({"batch_size": "4"}, "batch_size is '4'; it must be a whole number"),
        ({"batch_size": 4, "threads": 1.5}, r"threads is 1\.5; it must be a whole number"),
        ({"batch_size": 0}, "batch_size is 0; it must be at least 1"),
    ],
)
def test_a_count_that_is_none_is_refused(keywords: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        LoaderSettings.of(fanouts=[2], **keywords).check()


@pytest.mark.parametrize(
    ("keyword", "message"),
    [
        ("fanout", "unexpected keyword argument 'fanout'; did you mean 'fanouts'?"),
        ("memory_budgt", "did you mean 'memory_budget'?"),
        ("zzzzz", "unexpected keyword argument 'zzzzz'; allowed: "),
    ],
)
def test_an_unknown_keyword_is_told_the_nearest(keyword: str, message: str) -> None:
    keywords: dict[str, Any] = {keyword: 1}
    with pytest.raises(TypeError) as caught:
        LoaderSettings.of(**keywords)
    assert message in str(caught.value)
    with pytest.raises(TypeError) as caught:
        gloader.Loader(None, fanouts=[2], batch_size=4, **keywords)  # type: ignore[arg-type]
    assert message in str(caught.value)


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"seed": "a"}, "seed is 'a'; it must be an integer"),
        ({"features": "disk"}, "features='disk' is not one of 'auto', 'ram', 'ssd' in this version"),
        ({"topology": "disk"}, "topology='disk' is not one of 'auto', 'ram', 'sweep', 'direct'"),
        ({"policy": "no such"}, "policy='no such' is not one of 'belady', 'static'"),
        ({"io_strategy": "fast"}, "io_strategy='fast' is not one of 'auto', 'direct'"),
        ({"time_strategy": "newest"}, "time_strategy='newest' is not one of 'none', 'uniform', 'last'"),
        ({"time_bound": ">"}, "time_bound='>' is not one of '<', '<='"),
        ({"time_window": 0, "time_strategy": "last"}, "time_window is 0; it must be at least 1 second"),
        ({"time_window": 0.5, "time_strategy": "last"}, "time_window is 0.5; it must be a whole number"),
        ({"time_window": 60}, "time_window is 60, and time_strategy='none' takes edges of all times"),
        ({"threads": 0}, "threads is 0; it must be at least 1"),
        ({"superbatch": 0}, "superbatch is 0; it must be at least 1"),
        ({"epochs": -1}, "epochs is -1; it must be at least 0"),
    ],
)
def test_wrong_values_are_named(wrong: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        LoaderSettings.of(**wrong).check()


def test_the_typed_keywords_are_the_fields() -> None:
    local = {"torch": torch, "StrPath": str | Path, "Sequence": list}
    typed = get_type_hints(LoaderKeywords, localns=local, globalns={**vars(config), **local})
    hints = _hints()
    assert typed.keys() == hints.keys()
    # What may be written in several ways: sizes as text, any sequence, any path, torch's own devices.
    size = str | int | None
    wider = {Size: size, config.Budget: size, SizeOrShare: str | int | float | None, SizeOrAuto: str | int}
    looser = {"fanouts": FanoutsLike, "spill_dir": str | Path | None, "device": str | torch.device}
    for name, hint in hints.items():
        expected = looser.get(name) or next((wide for kind, wide in wider.items() if hint == kind), None)
        assert typed[name] == (expected or _plain(hint)), name


def _plain(hint: Any) -> Any:
    """Return a type without what cyclopts is told of it."""
    if hasattr(hint, "__metadata__"):
        return _plain(hint.__origin__)
    if type(None) in get_args(hint) and get_origin(hint) is not None:
        return next(_plain(part) for part in get_args(hint) if part is not type(None)) | None
    return hint


def test_the_signature_of_the_loader_shows_every_keyword_with_its_default() -> None:
    parameters = inspect.signature(gloader.Loader).parameters
    own = {"dataset", "seeds", "times", "table", "embeddings", "device_dry_run"}
    assert parameters.keys() == {*own, *loader_defaults()}
    required = {name for name, p in parameters.items() if p.default is inspect.Parameter.empty}
    assert required == {"dataset", "fanouts", "batch_size"}
    for name, default in loader_defaults().items():
        if name not in required:
            assert parameters[name].default == default
            assert parameters[name].kind is inspect.Parameter.KEYWORD_ONLY
    assert len(parameters) == len(LoaderSettings().keywords()) + len(own)


def _train(app: App, words: list[str]) -> dict[str, Any]:
    """Return the groups that the command line ``gloader train`` fills."""
    _, bound, _ = app.parse_args(["train", "--dataset", "x", *words])
    return {name: bound.arguments[name] for name in bound.arguments if name not in ("run", "output")}


def test_the_defaults_of_the_flags_are_those_of_the_settings() -> None:
    given = _train(build_app(), ["--fanout", "15,10,5", "--hidden", "256", "--epochs", "10", "--compile"])
    assert given["loader"] == LoaderSettings()
    assert given["model"] == TrainSettings().model
    assert given["optim"] == TrainSettings().optim
    assert given["step"] == config.StepConfig(compile=True)


def test_flags_fill_the_settings() -> None:
    words = ["--fanout", "3,2", "--memory-budget", "8GB", "--cache", "10%", "--loader", "private"]
    words += ["--stall-timeout", "9", "--device-cache", "4KB", "--spill-dir", "here", "--no-superbatch-reset"]
    assert _train(build_app(), words)["loader"] == LoaderSettings.of(
        fanouts=(3, 2),
        memory_budget="8GB",
        cache="10%",
        sharing="private",
        stall_timeout_s=9.0,
        device_cache="4KB",
        spill_dir="here",
    )


def test_what_is_recorded_is_a_recipe_of_flags() -> None:
    app = build_app()
    settings = LoaderSettings.of(**OTHERS)
    recorded = settings.recorded()
    flags = {name for name, hint in _hints().items() if NOT_A_FLAG not in getattr(hint, "__metadata__", ())}
    assert len(recorded) == len(flags)
    assert {"memory_budget_bytes", "cache_bytes", "spill_budget_bytes", "max_gap_bytes", "loader"} <= set(
        recorded
    )
    words: list[str] = []
    for name, value in flatten({"loader": recorded}):
        text = ",".join(map(str, value)) if isinstance(value, tuple) else str(value)
        words += [
            f"--{name.replace('_', '-')}={text}"
            if not isinstance(value, bool)
            else f"--{name.replace('_', '-')}"
        ]
    kept = {name: OTHERS[name] for name in flags}
    assert _train(app, words)["loader"] == LoaderSettings.of(**kept)


def test_a_dataset_at_a_url_is_opened_by_the_keywords_of_its_settings() -> None:
    parameters = inspect.signature(Dataset.open).parameters
    ours = {name: parameters[name].default for name in asdict(ObjectSettings())}
    assert ours == ObjectSettings().keywords()
    assert set(parameters) - set(ours) == {"path", "os_io"}


def test_settings_of_a_url_are_flags_and_their_record_is_a_recipe() -> None:
    given = ObjectSettings.of(
        mirror_dir="/ssd/mirrors",
        mirror_budget="40GB",
        object_limit="1MB/s",
        object_requests=3,
        object_price="2/GB",
        object_redirects=True,
    )
    assert given.mirror_budget == 40_000_000_000
    recorded = given.recorded()
    assert recorded["mirror_dir"] == "/ssd/mirrors"
    words = [f"--{name.replace('_', '-')}={value}" for name, value in flatten({"objects": recorded})]
    assert _train(build_app(), words)["objects"] == given


def test_every_field_is_explained_once_and_below_itself() -> None:
    tree = ast.parse(Path(config.__file__).read_text())
    classes = {node.name: node for node in tree.body if isinstance(node, ast.ClassDef)}
    groups = [
        *_groups(LoaderSettings()).values(),
        *(TrainSettings().model, TrainSettings().optim, TrainSettings().step, ObjectSettings()),
    ]
    texts: list[str] = []
    for group in groups:
        body = classes[type(group).__name__].body
        for field, text in itertools.pairwise(body):
            if isinstance(field, ast.AnnAssign):
                assert isinstance(text, ast.Expr), ast.unparse(field)
                texts.append(ast.literal_eval(text.value))
        assert sum(isinstance(node, ast.AnnAssign) for node in body) == len(asdict(group))
    assert len(set(texts)) == len(texts)
    assert all(text.endswith(".") for text in texts)
