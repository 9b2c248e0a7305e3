"""The packet filter's part of the walls, as a pure script: what a workspace's bridge may send where.

Two chains of our own, filled in one go, and a jump to each from the chains that Docker and the kernel ask first. What
was there before stays; put up twice they are the same. Which of the two iptables Docker uses is found by its own chain.
"""

from collections.abc import Sequence

PRIVATE = ("10.0.0.0/8", "100.64.0.0/10", "172.16.0.0/12", "192.168.0.0/16")
"""Where databases, object stores and other machines of the house are."""
NEVER = ("169.254.0.0/16", "224.0.0.0/4", "240.0.0.0/4")
"""Metadata services, and everybody at once."""
MISSING = 4

_FIND = """\
set -eu
for tables in iptables-nft iptables-legacy; do
  "$tables" -w -S DOCKER-USER >/dev/null 2>&1 && break
  tables=
done
if [ -z "$tables" ]; then echo 'there is no chain DOCKER-USER'; exit 3; fi
"""


def chains(bridge: str) -> tuple[str, str]:
    """(for what is forwarded, for what is meant for the machine itself)"""
    return f"{bridge}-OUT", f"{bridge}-HOST"


def rules(bridge: str, reachable: Sequence[str]) -> list[str]:
    outwards, to_host = chains(bridge)
    return [
        # Answers to us, who came to the IDE, and nothing that a workspace begins.
        f"-A {to_host} -m conntrack --ctstate RELATED,ESTABLISHED -j RETURN",
        f"-A {to_host} -j DROP",
        f"-A {outwards} -m conntrack --ctstate RELATED,ESTABLISHED -j RETURN",
        *(f"-A {outwards} -d {network} -j DROP" for network in NEVER),
        *(f"-A {outwards} -d {network} -j RETURN" for network in reachable),
        # The resolver is often a private address, and the engine asks it from inside the container.
        *(
            f"-A {outwards} -d {network} -p {kind} --dport 53 -j RETURN"
            for network in PRIVATE
            for kind in ("udp", "tcp")
        ),
        *(f"-A {outwards} -d {network} -j DROP" for network in PRIVATE),
        f"-A {outwards} -o {bridge} -j DROP",
    ]


def jumps(bridge: str) -> list[tuple[str, str]]:
    """(the chain that is asked first, the rule in it)"""
    outwards, to_host = chains(bridge)
    return [("DOCKER-USER", f"-i {bridge} -j {outwards}"), ("INPUT", f"-i {bridge} -j {to_host}")]


def put_up(bridge: str, reachable: Sequence[str]) -> str:
    filled = "\n".join([*(f":{chain} - [0:0]" for chain in chains(bridge)), *rules(bridge, reachable)])
    led_to = "\n".join(
        f'"$tables" -w -C {chain} {rule} 2>/dev/null || "$tables" -w -I {chain} 1 {rule}'
        for chain, rule in jumps(bridge)
    )
    return f'{_FIND}"$tables-restore" -w --noflush <<END\n*filter\n{filled}\nCOMMIT\nEND\n{led_to}\n'


def check(bridge: str, reachable: Sequence[str]) -> str:
    """Says each rule that is not there, and changes nothing."""
    wanted = [*rules(bridge, reachable), *(f"-A {chain} {rule}" for chain, rule in jumps(bridge))]
    looks = "\n".join(
        f'"$tables" -w -C {rule.removeprefix("-A ")} 2>/dev/null || {{ echo "missing: {rule}"; code={MISSING}; }}'
        for rule in wanted
    )
    return f"{_FIND}code=0\n{looks}\nexit $code\n"


def take_down(bridge: str) -> str:
    gone = [f'"$tables" -w -D {chain} {rule} 2>/dev/null || true' for chain, rule in jumps(bridge)]
    gone += [f'"$tables" -w -{verb} {chain} 2>/dev/null || true' for chain in chains(bridge) for verb in "FX"]
    return _FIND + "\n".join(gone) + "\n"
