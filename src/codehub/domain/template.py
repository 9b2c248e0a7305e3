"""What a workspace is made from: templates, which are the list of images that may run at all, and a git repository
with its branch or tag. Pure.

A git address is stored, shown in logs and handed to `git` inside the workspace, so it holds no password and cannot be
read as an option; nor can the name of a branch.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any

from codehub.domain.errors import Invalid

TEXT_LENGTH = 500
VARIABLES = 100
VALUE_LENGTH = 4096
COMMAND_WORDS = 64
OBJECT_NAME = 253
_OBJECT = re.compile(r"[a-z0-9](?:[a-z0-9.-]*[a-z0-9])?")
_LABEL_NAME = re.compile(r"(?:[a-z0-9](?:[a-z0-9.-]{0,251}[a-z0-9])?/)?[A-Za-z0-9](?:[A-Za-z0-9_.-]{0,61}[A-Za-z0-9])?")
_LABEL_VALUE = re.compile(r"(?:[A-Za-z0-9](?:[A-Za-z0-9_.-]{0,61}[A-Za-z0-9])?)?")
"""Names of objects, of labels, and labels' values, as Kubernetes takes them."""
_LEAST: Mapping[str, float] = {"cpu": 0.01, "memory_bytes": 64 << 20, "disk_bytes": 16 << 20, "pids": 32}
"""The least that a template may give: with less nothing starts that people could work in."""
_MIB = 1 << 20
_BEFORE_ALL = datetime(1970, 1, 1, tzinfo=UTC)
_NAME = re.compile(r"[a-z0-9](?:[a-z0-9-]{0,38}[a-z0-9])?")
_VARIABLE = re.compile(r"[A-Za-z_][A-Za-z0-9_]{0,99}")
_HOST = r"(?:[A-Za-z0-9-]+(?:\.[A-Za-z0-9-]+)+(?::[0-9]+)?|[A-Za-z0-9-]+:[0-9]+|localhost)"
_PART = r"[a-z0-9]+(?:(?:\.|_|__|-+)[a-z0-9]+)*"
_IMAGE = re.compile(
    rf"(?:{_HOST}/)?{_PART}(?:/{_PART})*(?::[A-Za-z0-9_][A-Za-z0-9_.-]{{0,127}})?(?:@[a-z0-9]+:[0-9a-f]{{32,}})?",
    re.ASCII,
)
"""An image's name as registries have it: [HOST[:PORT]/]NAME[:TAG][@DIGEST]."""
_LONGEST_GIT_URL = 1000
_LONGEST_GIT_REF = 255
_NO_GIT_REF = re.compile(r"^-|[\x00-\x20\x7f~^:?*\[\\]|\.\.|@\{|//|^/|/$|\.$|(?:^|/)\.|\.lock(?:/|$)|^@$|^$")
"""What git does not take in the name of a branch or tag (`git check-ref-format`)."""
_GIT_HOST = r"[A-Za-z0-9](?:[A-Za-z0-9.-]*[A-Za-z0-9])?(?::[0-9]{1,5})?"
_GIT_PATH = r"[A-Za-z0-9._~%+@=,/-]+"
_GIT_URLS = (
    re.compile(rf"(?:https|git)://{_GIT_HOST}/{_GIT_PATH}"),
    re.compile(rf"ssh://(?:[A-Za-z0-9._-]+@)?{_GIT_HOST}/{_GIT_PATH}"),
    re.compile(rf"[A-Za-z0-9_][A-Za-z0-9._-]*@{_GIT_HOST}:(?!-){_GIT_PATH}"),
)


@dataclass(frozen=True, slots=True)
class KubernetesOptions:
    """What a template says to a cluster alone; other runtimes do not look at it. `command`: what the image runs, for an
    image that is not made from codehub-workspace; None: what those run. `storage_class` None: the installation's."""

    command: tuple[str, ...] | None = None
    node_selector: Mapping[str, str] = field(default_factory=dict)
    tolerations: tuple[Mapping[str, Any], ...] = ()
    runtime_class: str | None = None
    priority_class: str | None = None
    storage_class: str | None = None
    pull_secrets: tuple[str, ...] = ()

    def to_json(self) -> dict[str, Any]:
        """The options that are set, as they are stored and shown."""
        given = {
            "command": None if self.command is None else list(self.command),
            "node_selector": dict(self.node_selector),
            "tolerations": [dict(one) for one in self.tolerations],
            "runtime_class": self.runtime_class,
            "priority_class": self.priority_class,
            "storage_class": self.storage_class,
            "pull_secrets": list(self.pull_secrets),
        }
        return {name: value for name, value in given.items() if value}

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> "KubernetesOptions":
        """The options of a JSON object, each of the kind that it must be; raises Invalid otherwise."""
        unknown = sorted(data.keys() - cls.__dataclass_fields__.keys())
        if unknown:
            raise Invalid(f"There is no option {unknown[0][:100]!r} for Kubernetes.", "kubernetes")
        try:
            return checked_kubernetes_options(_options(cls, data))
        except (TypeError, ValueError, AttributeError):
            raise Invalid("An option for Kubernetes is not of the kind that it must be.", "kubernetes") from None


NO_KUBERNETES_OPTIONS = KubernetesOptions()


def _options(cls: type[KubernetesOptions], data: Mapping[str, Any]) -> KubernetesOptions:
    command = data.get("command")
    return cls(
        command=None if command is None else _words(command),
        node_selector={str(name): str(value) for name, value in (data.get("node_selector") or {}).items()},
        tolerations=tuple(dict(one) for one in data.get("tolerations") or ()),
        runtime_class=data.get("runtime_class") or None,
        priority_class=data.get("priority_class") or None,
        storage_class=data.get("storage_class") or None,
        pull_secrets=_words(data.get("pull_secrets") or ()),
    )


def _words(found: Any) -> tuple[str, ...]:  # noqa: ANN401 - whatever JSON holds
    if isinstance(found, str) or not all(isinstance(word, str) for word in found):
        raise TypeError
    return tuple(found)


def checked_kubernetes_options(options: KubernetesOptions) -> KubernetesOptions:
    """The options themselves; raises Invalid, saying which is wrong, if no cluster could take them."""
    if options.command is not None and not (
        1 <= len(options.command) <= COMMAND_WORDS and all(0 < len(word) <= VALUE_LENGTH for word in options.command)
    ):
        raise Invalid("The command is a list of 1 to 64 words, none of them empty.", "kubernetes")
    named = (options.runtime_class, options.priority_class, options.storage_class, *options.pull_secrets)
    for name in named:
        if name is not None and not (len(name) <= OBJECT_NAME and _OBJECT.fullmatch(name)):
            raise Invalid(f"{str(name)[:100]!r} is no name that Kubernetes gives to an object.", "kubernetes")
    for name, value in options.node_selector.items():
        if not _LABEL_NAME.fullmatch(name) or not _LABEL_VALUE.fullmatch(value):
            raise Invalid(f"{name[:100]!r}: {value[:100]!r} is no label that a node can have.", "kubernetes")
    for toleration in options.tolerations:
        _check_toleration(toleration)
    return options


def _check_toleration(found: Mapping[str, Any]) -> None:
    """Raise Invalid if the scheduler would not take it. Without a key it would tolerate everything, a node on which
    nobody else may run too."""
    operator, effect, seconds = found.get("operator", "Equal"), found.get("effect"), found.get("tolerationSeconds")
    right = (
        found.keys() <= {"key", "operator", "value", "effect", "tolerationSeconds"}
        and isinstance(found.get("key"), str)
        and _LABEL_NAME.fullmatch(found["key"]) is not None
        and operator in ("Equal", "Exists")
        and effect in (None, "NoSchedule", "PreferNoSchedule", "NoExecute")
        and isinstance(found.get("value", ""), str)
        and _LABEL_VALUE.fullmatch(found.get("value", "")) is not None
        and not (operator == "Exists" and found.get("value"))
        and (seconds is None or (isinstance(seconds, int) and effect == "NoExecute"))
    )
    if not right:
        raise Invalid("A toleration has a key, and as Kubernetes has them operator, value and effect.", "kubernetes")


@dataclass(frozen=True, slots=True)
class Template:
    """What workspaces are made from. `image_ref` empty: the runtime's own image. A limit that is None is the runtime's
    own. `sudo`: people may become root inside their own container. Times are the store's."""

    name: str
    description: str = ""
    image_ref: str = ""
    env: Mapping[str, str] = field(default_factory=dict)
    cpu: float | None = None
    memory_bytes: int | None = None
    disk_bytes: int | None = None
    pids: int | None = None
    sudo: bool = False
    kubernetes: KubernetesOptions = NO_KUBERNETES_OPTIONS
    created_at: datetime = _BEFORE_ALL
    updated_at: datetime = _BEFORE_ALL
    disabled_at: datetime | None = None


def checked_template(template: Template) -> Template:
    """The template itself; raises Invalid, saying which part is wrong, if no workspace could be made from it."""
    if not _NAME.fullmatch(template.name):
        raise Invalid("A template's name has 1 to 40 lower-case letters, digits and inner hyphens.")
    for text in (template.description, template.image_ref):
        if len(text) > TEXT_LENGTH or not text.isprintable():
            raise Invalid(f"A template's texts have at most {TEXT_LENGTH} printable characters.")
    if template.image_ref and not _IMAGE.fullmatch(template.image_ref):
        raise Invalid("An image's name looks like registry.example.com/team/ide:1, in lower case.", "image_ref")
    _check_variables(template.env)
    checked_kubernetes_options(template.kubernetes)
    for field_name, least in _LEAST.items():
        limit = getattr(template, field_name)
        if limit is not None and not least <= limit < 2**63:
            raise Invalid(f"At least {least}; leave it out for the runtime's own.", field_name)
    return template


def must_fit(template: Template, cpu: float | None, memory_bytes: int | None) -> None:
    """Raise Invalid if the template gives a workspace more than the engine has; None is as much as one likes."""
    if template.cpu is not None and cpu is not None and template.cpu > cpu:
        raise Invalid(f"The engine has {cpu:g} CPUs: no workspace can have {template.cpu:g}.", "cpu")
    if template.memory_bytes is not None and memory_bytes is not None and template.memory_bytes > memory_bytes:
        there, asked = memory_bytes // _MIB, template.memory_bytes // _MIB
        raise Invalid(f"The engine has {there} MiB of memory: no workspace can have {asked} MiB.", "memory_bytes")


def must_be_able_to_sudo(template: Template, *, runtime: str, possible: bool) -> None:
    """Raise Invalid if the template lets people become root where the runtime has no container to be root of."""
    if template.sudo and not possible:
        raise Invalid(
            f"The {runtime} runtime cannot give sudo: a workspace is no container of its own there. Leave it out, or "
            "run workspaces in Docker.",
            "sudo",
        )


def _check_variables(env: Mapping[str, str]) -> None:
    if len(env) > VARIABLES:
        raise Invalid(f"A template sets at most {VARIABLES} environment variables.")
    for name, value in env.items():
        if not _VARIABLE.fullmatch(name):
            raise Invalid(f"{name[:100]!r} is no name for an environment variable.")
        if len(value) > VALUE_LENGTH or "\x00" in value or not _encodable(value):
            raise Invalid(f"The value of {name} has at most {VALUE_LENGTH} characters and no NUL.")


def _encodable(text: str) -> bool:
    return not any("\ud800" <= character <= "\udfff" for character in text)


def checked_git_url(text: str) -> str:
    if len(text) <= _LONGEST_GIT_URL and any(form.fullmatch(text) for form in _GIT_URLS):
        return text
    raise Invalid(
        "A git address is https://host/path, ssh://user@host/path, git://host/path or user@host:path, without a "
        "password; put credentials into the workspace instead.",
        "git_url",
    )


def checked_git_ref(text: str) -> str:
    """The name of a branch or tag itself; raises Invalid if git would not take it as one."""
    if len(text.encode(errors="replace")) <= _LONGEST_GIT_REF and text.isprintable() and not _NO_GIT_REF.search(text):
        return text
    raise Invalid(
        "A branch or tag is named as git names them, such as main or release/1.2: without spaces, '..', ~ ^ : ? * [ "
        "and backslashes, and no dash in front.",
        "git_ref",
    )
