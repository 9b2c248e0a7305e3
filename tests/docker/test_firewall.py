"""The packet filter's rules, as text. That the kernel heeds them is shown from inside a workspace, elsewhere."""

from codehub.adapters.docker import firewall

RULES = firewall.rules("ch-0", ["10.1.0.0/16"])


def place(rule: str) -> int:
    return RULES.index(rule)


def test_nothing_that_a_workspace_begins_reaches_the_machine_itself() -> None:
    assert [rule for rule in RULES if "ch-0-HOST" in rule] == [
        "-A ch-0-HOST -m conntrack --ctstate RELATED,ESTABLISHED -j RETURN",
        "-A ch-0-HOST -j DROP",
    ]


def test_metadata_is_never_reached_whatever_is_allowed() -> None:
    assert place("-A ch-0-OUT -d 169.254.0.0/16 -j DROP") < place("-A ch-0-OUT -d 10.1.0.0/16 -j RETURN")


def test_private_networks_are_closed_but_for_those_named_and_the_resolver() -> None:
    closed = place("-A ch-0-OUT -d 10.0.0.0/8 -j DROP")
    assert place("-A ch-0-OUT -d 10.1.0.0/16 -j RETURN") < closed
    assert place("-A ch-0-OUT -d 10.0.0.0/8 -p udp --dport 53 -j RETURN") < closed
    assert {rule.split()[3] for rule in RULES if rule.endswith("DROP") and " -d " in rule} == {
        *firewall.PRIVATE,
        *firewall.NEVER,
    }


def test_no_other_workspace_is_reached() -> None:
    assert RULES[-1] == "-A ch-0-OUT -o ch-0 -j DROP"


def test_put_up_twice_they_are_the_same() -> None:
    script = firewall.put_up("ch-0", [])
    assert ":ch-0-OUT - [0:0]" in script, "filled anew, not added to"
    assert '"$tables" -w -C INPUT -i ch-0 -j ch-0-HOST 2>/dev/null || "$tables" -w -I INPUT 1 ' in script
    assert script == firewall.put_up("ch-0", [])


def test_the_look_asks_for_every_rule_and_changes_none() -> None:
    script = firewall.check("ch-0", ["10.1.0.0/16"])
    assert all(f"-C {rule.removeprefix('-A ')} " in script for rule in RULES)
    assert "-C DOCKER-USER -i ch-0 -j ch-0-OUT" in script
    assert not any(f" -{verb} " in script for verb in ("I", "D", "F", "X", "N"))
