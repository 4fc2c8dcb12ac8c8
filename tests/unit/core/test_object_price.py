import pytest

from gloader.core.object_traffic import ObjectPrice, format_cost
from gloader.errors import ConfigError


@pytest.mark.parametrize(
    ("text", "per_request", "per_byte"),
    [
        ("0.0004/1000req,0.09/GB", 4e-7, 9e-11),
        ("0.09/GB", 0.0, 9e-11),
        ("1/req", 1.0, 0.0),
        ("5 / 10req , 2/ 4MiB", 0.5, 2 / 4 / 2**20),
    ],
)
def test_prices_are_for_requests_and_for_bytes(text: str, per_request: float, per_byte: float) -> None:
    price = ObjectPrice.parse(text)
    assert price.per_request == pytest.approx(per_request)
    assert price.per_byte == pytest.approx(per_byte)
    assert price.cost(requests=10, num_bytes=1000) == pytest.approx(10 * per_request + 1000 * per_byte)


@pytest.mark.parametrize(
    "text", ["", "0.09", "0.09/GB,0.1/GB", "1/0req", "1/0GB", "-1/GB", "$1/GB", "1/parsec", "9" * 400 + "/GB"]
)
def test_what_is_no_price_says_how_to_write_one(text: str) -> None:
    with pytest.raises(ConfigError):
        ObjectPrice.parse(text)


def test_costs_are_shown_as_far_as_they_are_more_than_nothing() -> None:
    assert [format_cost(cost) for cost in (0, 0.00123456, 1.5, 1234.0)] == [
        "0.00",
        "0.00123",
        "1.50",
        "1234.00",
    ]
