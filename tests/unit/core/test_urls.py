import pytest

from gloader.core.paths import is_squeezed_url, is_url, require_no_url, require_plain, shown_url
from gloader.errors import ConfigError


@pytest.mark.parametrize(
    "text", ["s3://b/x", "gs://b", "az://c/x", "https://h/x", "http://127.0.0.1:1/x", "file:///a", "S3://b/x"]
)
def test_urls_are_told_from_paths_and_sources(text: str) -> None:
    assert is_url(text)
    assert not is_squeezed_url(text)


@pytest.mark.parametrize(
    "text", ["data/x", "/s3://b", "s3:/b/x", "ogb:ogbn-arxiv", "edges:a.csv", "", "s3:", "ftp://h/x"]
)
def test_other_text_is_no_url(text: str) -> None:
    assert not is_url(text)


def test_a_url_that_was_a_path_is_known() -> None:
    assert is_squeezed_url("s3:/bucket/papers")


@pytest.mark.parametrize(
    ("url", "expected"),
    [
        ("s3://bucket/papers/", "s3://bucket/papers"),
        ("https://me:secret@host:8443/a/b?sig=secret&x=1#secret", "https://host:8443/a/b"),
        ("https://secret@host/a", "https://host/a"),
        ("https://me:se@cret@host/a", "https://host/a"),
        ("file:///data/x", "file:///data/x"),
        ("http://[bad/secret", "http://..."),
    ],
)
def test_what_may_be_secret_is_not_shown(url: str, expected: str) -> None:
    assert shown_url(url) == expected


@pytest.mark.parametrize("url", ["https://host/a?sig=secret", "https://me:secret@host/a#secret"])
def test_what_stands_behind_the_path_is_refused_without_being_said(url: str) -> None:
    with pytest.raises(ConfigError) as caught:
        require_plain(url)
    assert "secret" not in str(caught.value)
    require_plain(url.partition("?")[0].partition("#")[0])


@pytest.mark.parametrize("text", ["ftp://me:secret@host/x", "htps://host/x", "s3x://bucket/x"])
def test_a_misspelt_url_is_no_path(text: str) -> None:
    with pytest.raises(
        ConfigError, match=f"^{text.partition(':')[0]}://... is no URL .* URLs begin with s3://"
    ) as caught:
        require_no_url(text)
    assert "secret" not in str(caught.value)


@pytest.mark.parametrize("text", ["s3:/bucket/x", "https:/me:secret@host/x"])
def test_a_url_with_a_slash_gone_is_no_path(text: str) -> None:
    with pytest.raises(ConfigError, match="has one slash where a URL has two") as caught:
        require_no_url(text)
    assert "secret" not in str(caught.value)


@pytest.mark.parametrize("text", ["data/x", "/s3://b", "./ftp://x", "edges:/data/a.csv", "s3://bucket/x", ""])
def test_paths_sources_and_urls_are_left_alone(text: str) -> None:
    require_no_url(text)
