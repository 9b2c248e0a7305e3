"""The packet filter's rules, as text. That the kernel heeds them is shown from inside a workspace, elsewhere."""

import os
import subprocess
from pathlib import Path

from codehub.adapters.docker import firewall

RULES = firewall.rules("ch-0", ["10.1.0.0/16", "192.168.1.10:3000"])
SERVICE = "-p tcp -m conntrack --ctorigdst 192.168.1.10 --ctorigdstport 3000"
ANSWERS = "-m conntrack --ctstate RELATED,ESTABLISHED --ctdir REPLY"


def place(rule: str) -> int:
    return RULES.index(rule)


def test_nothing_that_a_workspace_begins_reaches_the_machine_itself() -> None:
    assert [rule for rule in firewall.rules("ch-0", ["10.1.0.0/16"]) if "ch-0-HOST" in rule] == [
        f"-A ch-0-HOST {ANSWERS} -j RETURN",
        "-A ch-0-HOST -j DROP",
    ]


def test_of_the_machine_itself_only_an_address_with_its_port_is_opened() -> None:
    assert [rule for rule in RULES if "ch-0-HOST" in rule] == [
        f"-A ch-0-HOST {ANSWERS} -j RETURN",
        f"-A ch-0-HOST {SERVICE} -j RETURN",
        "-A ch-0-HOST -j DROP",
    ]


def test_another_container_is_reached_by_address_and_port_both_ways_past_dockers_own_rules() -> None:
    opened = place(f"-A ch-0-OUT {SERVICE} -j ACCEPT")
    assert place("-A ch-0-OUT -d 169.254.0.0/16 -j DROP") < opened, "never metadata"
    assert place("-A ch-0-OUT -o ch-0 -j DROP") < opened, "never another workspace"
    assert opened < place("-A ch-0-OUT -d 192.168.0.0/16 -j DROP")
    assert f"-A ch-0-IN {SERVICE} --ctstate ESTABLISHED --ctdir REPLY -j ACCEPT" in RULES


def test_a_connection_is_let_through_as_an_answer_and_not_because_it_is_there() -> None:
    assert [rule for rule in RULES if "ESTABLISHED" in rule and "--ctdir REPLY" not in rule] == []


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
    closed = place("-A ch-0-OUT -o ch-0 -j DROP")
    assert closed < place(f"-A ch-0-OUT {SERVICE} -j ACCEPT") < place("-A ch-0-OUT -d 10.1.0.0/16 -j RETURN")


def test_put_up_twice_they_are_the_same() -> None:
    script = firewall.monitor("ch-0", [])
    assert ":ch-0-OUT - [0:0]" in script, "filled anew, not added to"
    assert '"$tables" -w -C INPUT -i ch-0 -j ch-0-HOST 2>/dev/null || "$tables" -w -I INPUT 1 ' in script
    assert script == firewall.monitor("ch-0", [])


def test_docker_asks_our_chains_because_its_own_first_one_is_looked_after_too() -> None:
    """`iptables -F FORWARD` leaves our rules in place, and nobody asks them."""
    assert firewall.jumps("ch-0")[0] == ("FORWARD", "-j DOCKER-USER")
    assert "-D FORWARD" not in firewall.take_down("ch-0"), "that one is Docker's"


def test_the_look_asks_for_every_rule_and_changes_none() -> None:
    script = firewall.check("ch-0", ["10.1.0.0/16", "192.168.1.10:3000"])
    assert all(f"-C {rule.removeprefix('-A ')} " in script for rule in RULES)
    assert "-C DOCKER-USER -i ch-0 -j ch-0-OUT" in script
    assert not any(f" -{verb} " in script for verb in ("I", "D", "F", "X", "N"))


IPTABLES = r"""#!/bin/sh
# Keeps its rules in the file $RULES. All of them are lost once, just when ours are looked at for the first time.
[ "$1" != -w ] || shift
case $1 in
-S)
    if [ "$2" = lo-OUT ] && [ ! -e "$RULES.lost" ]; then
        : >"$RULES"
        : >"$RULES.lost"
    fi
    grep -F -- "-A $2 " "$RULES" || true
    ;;
-C) shift && grep -qxF -- "-A $*" "$RULES" ;;
-I) chain=$2 && shift 3 && echo "-A $chain $*" >>"$RULES" ;;
esac
"""
PROGRAMS = {
    "iptables-nft": IPTABLES,
    "iptables-nft-restore": '#!/bin/sh\ngrep "^-A" >>"$RULES"\n',
    "sleep": "#!/bin/sh\nexec /bin/sleep 0.1\n",
}


def test_rules_that_are_lost_while_the_monitor_begins_are_missed(tmp_path: Path) -> None:
    """What it compares with later is what stood when every rule was seen to be there."""
    for name, text in PROGRAMS.items():
        (tmp_path / name).write_text(text)
        (tmp_path / name).chmod(0o700)
    kept = tmp_path / "rules"
    kept.write_text("")
    environment = {"PATH": f"{tmp_path}:{os.environ['PATH']}", "RULES": str(kept)}
    words = ["sh", "-c", firewall.monitor("lo", [])]
    with subprocess.Popen(words, env=environment, stdout=subprocess.PIPE, text=True) as monitor:
        assert monitor.stdout is not None
        lines = [monitor.stdout.readline().partition(":")[0].strip() for _ in range(4)]
        monitor.kill()
    assert (tmp_path / "rules.lost").exists()
    assert set(firewall.rules("lo", [])) <= set(kept.read_text().splitlines())
    assert lines[-1] == firewall.INTACT
