import click
import pytest
from click.testing import CliRunner

from nnadapter.cli.parameters import placing, takes_placing


@click.command()
@takes_placing
def shown(policy, rules, plan):
    found = placing(policy, rules, plan, "allow")
    click.echo(f"{found.policy} {found.fallback} {'given' if rules is None else found.rules} {found.plan}")


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        ([], "priority allow given None"),
        (["--rules", "r.toml", "--plan", "p.json", "--policy", "latency"], "latency allow r.toml p.json"),
    ],
)
def test_what_decides_placement(arguments, expected):
    assert CliRunner().invoke(shown, arguments).output == f"{expected}\n"
