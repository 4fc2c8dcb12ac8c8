"""Slips in names of what is public: a keyword, or an attribute, that is not there is answered with the one meant."""

import inspect
from importlib import import_module

import pytest

import gloader

PLACES = (
    "gloader",
    "gloader.adapters.pyg",
    "gloader.adapters.dgl",
    "gloader.compat.dgl",
    "gloader.compat.dgl.dataloading",
    "gloader.compat.dgl.nn",
    "gloader.models",
    "gloader.ray",
)
# Made by others of these: no user calls them.
MADE = {"Dataset", "RowStorage", "GraphWithStores", "DGLError", "DglFeatureError", "DGLGraph"}


def public_callables():
    """Yield the name and the function of all that `__all__` of the public modules lists, and of Dataset's own."""
    for place in PLACES:
        try:
            module = import_module(place)
        except ImportError:  # DGL is not there for every Python
            continue
        for name in module.__all__:
            if callable(found := getattr(module, name)) and name not in MADE:
                yield f"{place}.{name}", found
    for name in dir(gloader.Dataset):
        if isinstance(inspect.getattr_static(gloader.Dataset, name), classmethod | staticmethod):
            yield f"Dataset.{name}", getattr(gloader.Dataset, name)


CALLABLES = dict(public_callables())


@pytest.mark.parametrize("name", CALLABLES)
def test_a_keyword_with_a_letter_too_many_is_answered(name):
    call = CALLABLES[name]
    parameters = inspect.signature(call).parameters.values()
    keywords = [
        each.name
        for each in parameters
        if each.kind in {each.KEYWORD_ONLY, each.POSITIONAL_OR_KEYWORD}
        and len(each.name) > 3  # "k" has no slip
    ]
    positional = []
    if name.startswith("Dataset.from_"):  # what these take by ** is answered behind what they name
        positional, keywords = (
            [None] * (len(inspect.signature(call).parameters) - 1),
            ["overwrite", "deduplicate", "memory_budget"],
        )
    for keyword in keywords:
        slip = keyword + keyword[-1]
        with pytest.raises(
            TypeError, match=f"unexpected keyword argument '{slip}'; did you mean '{keyword}'"
        ):
            call(*positional, **{slip: None})
