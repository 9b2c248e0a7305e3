"""The packet filter around workspaces, as pure scripts: what a workspace's bridge may send where.

Three chains of our own, filled in one go, and a jump to each from the chains that Docker and the kernel ask first. What
was there before stays; put up twice they are the same. Which of the two iptables Docker uses is found by its own chain;
where a reloaded firewall took that chain away too, it is made again.

Connections are let through as answers only (`--ctdir REPLY`), never because they exist already: one that a workspace
began while the rules were away ends with their return.
"""

from collections.abc import Sequence

PRIVATE = ("10.0.0.0/8", "100.64.0.0/10", "172.16.0.0/12", "192.168.0.0/16")
"""The networks where an operator's databases, object stores and other machines are."""
NEVER = ("169.254.0.0/16", "224.0.0.0/4", "240.0.0.0/4")
"""Networks that no workspace ever reaches: metadata services, multicast and broadcast."""
MISSING = 4
LOOK_SECONDS = 2
"""The time between two looks of the monitor; each look prints one line."""
INTACT, RESTORED, FAILED, GONE = "intact", "restored", "failed", "gone"
"""How a line of the monitor begins."""

_ANSWERS = "-m conntrack --ctstate RELATED,ESTABLISHED --ctdir REPLY"
_FIND = """\
set -u
find_tables() {
  for tables in iptables-nft iptables-legacy; do "$tables" -w -S DOCKER-USER >/dev/null 2>&1 && return 0; done
  for tables in iptables-nft iptables-legacy; do "$tables" -w -S FORWARD >/dev/null 2>&1 && return 0; done
  return 1
}
find_tables || { echo 'the packet filter of this machine cannot be used: iptables does not work'; exit 3; }
"""


def chains(bridge: str) -> tuple[str, str, str]:
    """The chain for what workspaces forward, the one for what they send to the machine itself, and the one for what is
    sent to them."""
    return f"{bridge}-OUT", f"{bridge}-HOST", f"{bridge}-IN"


def rules(bridge: str, reachable: Sequence[str]) -> list[str]:
    """`reachable`: networks, which open nothing of the engine's own machine, and single addresses with a TCP port
    (`192.168.1.10:3000`), which do: what listens there, or the other container whose published port it is."""
    outwards, to_host, inwards = chains(bridge)
    networks = [place for place in reachable if ":" not in place]
    services = [f"-p tcp -m conntrack --ctorigdst {host} --ctorigdstport {port}" for host, port in _services(reachable)]
    return [
        # Answers to us, who came to the IDE, and nothing that a workspace begins.
        f"-A {to_host} {_ANSWERS} -j RETURN",
        *(f"-A {to_host} {service} -j RETURN" for service in services),
        f"-A {to_host} -j DROP",
        f"-A {outwards} {_ANSWERS} -j RETURN",
        *(f"-A {outwards} -d {network} -j DROP" for network in NEVER),
        f"-A {outwards} -o {bridge} -j DROP",
        # Accepted for good: Docker's own rules, which come next, keep its networks from each other.
        *(f"-A {outwards} {service} -j ACCEPT" for service in services),
        *(f"-A {outwards} -d {network} -j RETURN" for network in networks),
        # The resolver is often a private address, and the engine asks it from inside the container.
        *(
            f"-A {outwards} -d {network} -p {kind} --dport 53 -j RETURN"
            for network in PRIVATE
            for kind in ("udp", "tcp")
        ),
        *(f"-A {outwards} -d {network} -j DROP" for network in PRIVATE),
        *(f"-A {inwards} {service} --ctstate ESTABLISHED --ctdir REPLY -j ACCEPT" for service in services),
    ]


def _services(reachable: Sequence[str]) -> list[tuple[str, str]]:
    return [(host, port) for host, colon, port in (place.partition(":") for place in reachable) if colon]


def jumps(bridge: str) -> list[tuple[str, str]]:
    """Pairs of the chain that is asked first and the rule in it. The first is Docker's own, without which it asks
    nobody."""
    outwards, to_host, inwards = chains(bridge)
    return [
        ("FORWARD", "-j DOCKER-USER"),
        ("DOCKER-USER", f"-i {bridge} -j {outwards}"),
        ("DOCKER-USER", f"-o {bridge} -j {inwards}"),
        ("INPUT", f"-i {bridge} -j {to_host}"),
    ]


def check(bridge: str, reachable: Sequence[str]) -> str:
    """A script that prints each rule that is not there, and changes nothing."""
    return f"{_FIND}{_checking(bridge, reachable)}check\n"


def monitor(bridge: str, reachable: Sequence[str]) -> str:
    """Puts the rules up, looks at them every few seconds for as long as the network is there, and puts back what is
    missing. Each look prints one line. Whoever starts it and reads `intact` or `restored` knows that they stand. What
    later looks are compared with is seen before the rules are checked: if they are lost in between, the check fails."""
    return f"""\
{_FIND}{_checking(bridge, reachable)}{_putting_up(bridge, reachable)}{_looking(bridge)}\
wanted=
while [ -e /sys/class/net/{bridge} ]; do
  if [ -n "$wanted" ] && [ "$(look)" = "$wanted" ]; then
    echo {INTACT}
  else
    missing=$(check)
    if find_tables && said=$(put_up 2>&1) && seen=$(look) && said=$(check); then
      if [ -n "$wanted" ]; then echo {RESTORED}: ${{missing:-rules of others among ours}}; else echo {INTACT}; fi
      wanted=$seen
    else
      echo {FAILED}: ${{said:-iptables does not work}}
    fi
  fi
  sleep {LOOK_SECONDS}
done
echo {GONE}: there is no interface {bridge}
"""


def take_down(bridge: str) -> str:
    """A script that removes our chains and rules. What was not ours to begin with stays."""
    gone = [f'"$tables" -w -D {chain} {rule} 2>/dev/null || true' for chain, rule in jumps(bridge)[1:]]
    gone += [f'"$tables" -w -{verb} {chain} 2>/dev/null || true' for chain in chains(bridge) for verb in "FX"]
    return _FIND + "\n".join(gone) + "\n"


def _checking(bridge: str, reachable: Sequence[str]) -> str:
    wanted = [*rules(bridge, reachable), *(f"-A {chain} {rule}" for chain, rule in jumps(bridge))]
    looks = "\n".join(
        f'  "$tables" -w -C {rule.removeprefix("-A ")} 2>/dev/null || {{ echo "missing: {rule}"; code={MISSING}; }}'
        for rule in wanted
    )
    return f"check() {{\n  code=0\n{looks}\n  return $code\n}}\n"


def _putting_up(bridge: str, reachable: Sequence[str]) -> str:
    filled = "\n".join([*(f":{chain} - [0:0]" for chain in chains(bridge)), *rules(bridge, reachable)])
    led_to = " &&\n".join(
        f'  {{ "$tables" -w -C {chain} {rule} 2>/dev/null || "$tables" -w -I {chain} 1 {rule}; }}'
        for chain, rule in jumps(bridge)
    )
    return f"""\
put_up() {{
  "$tables" -w -N DOCKER-USER 2>/dev/null
  "$tables-restore" -w --noflush <<END &&
*filter
{filled}
COMMIT
END
{led_to}
}}
"""


def _looking(bridge: str) -> str:
    """A script that prints what stands now, as text that is the same for as long as nothing changes: seven short
    looks."""
    asked = "\n".join(f'  "$tables" -w -S {chain} 2>/dev/null' for chain in chains(bridge))
    led_to = "\n".join(f'  "$tables" -w -C {chain} {rule} 2>/dev/null; echo $?' for chain, rule in jumps(bridge))
    return f"look() {{\n{asked}\n{led_to}\n}}\n"
