"""All settings, typed, with their help texts; docs/reference/settings.md is generated from here.

The command line loads them once, at start, and gives them to bootstrap. Secrets have no default. A wrong value stops
the start before anything is changed, with one line per problem that says what to do.
"""

import difflib
import ipaddress
import json
import re
import shlex
import ssl
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal, Self

from pydantic import AfterValidator, Field, HttpUrl, SecretStr, TypeAdapter, ValidationError, model_validator
from pydantic.fields import FieldInfo
from pydantic_settings import BaseSettings, SettingsConfigDict

TTL_MARGIN_SECONDS = 60
"""How much longer than one flush and one drain of activity a TTL must be, so that no stop overtakes a key press."""


@dataclass(frozen=True, slots=True)
class Must:
    """The second half of the sentence `NAME='value': must be …`, and a value that is right."""

    be: str
    example: str


def _matching(pattern: str) -> AfterValidator:
    def check(value: SecretStr) -> SecretStr:
        if not re.match(pattern, value.get_secret_value()):
            raise ValueError
        return value

    return AfterValidator(check)


def _web_address(value: SecretStr) -> SecretStr:
    TypeAdapter(HttpUrl).validate_python(value.get_secret_value())
    return value


def _shell_words(value: str) -> str:
    if not any("{socket}" in word for word in shlex.split(value)):
        raise ValueError
    return value


def _addresses(value: str) -> str:
    for one in value.split(","):
        ipaddress.ip_network(one.strip())
    return value


def _reachable(value: str) -> str:
    """Checks a list of IPv4 networks and of addresses with a port; the network of workspaces has no IPv6."""
    for one in value.split(","):
        host, colon, port = one.strip().partition(":")
        if not colon:
            ipaddress.IPv4Network(host)
        elif ipaddress.IPv4Address(host).is_unspecified or not (
            port.isascii() and port.isdigit() and int(port) in _PORTS
        ):
            raise ValueError
    return value


_PORTS = range(1, 65536)


def _gallery(value: str) -> str:
    """The gallery as VS Code reads it, a JSON object. Of an address alone the others follow, if it is laid out as Open
    VSX is."""
    found = json.loads(value) if value.startswith("{") else {"serviceUrl": value}
    if not re.fullmatch(r"https?://[^\s/]+\S*", str(found.get("serviceUrl"))):
        raise ValueError
    if value.startswith("{"):
        return json.dumps(found)
    service = value.rstrip("/")
    if not service.endswith("/vscode/gallery"):
        return json.dumps({"serviceUrl": service})
    place = service.removesuffix("/gallery")
    resources = "{publisher}/{name}/{version}/Microsoft.VisualStudio.Code.WebResources/{path}"
    others = {
        "itemUrl": f"{place}/item",
        "extensionUrlTemplate": f"{service}/{{publisher}}/{{name}}/latest",
        "resourceUrlTemplate": f"{place}/asset/{resources}",
    }
    return json.dumps({"serviceUrl": service, **others, "controlUrl": "", "recommendationsUrl": ""})


def ca_bundle_trouble(path: Path) -> str:
    """What is wrong with a file of certificate authorities, and what to do; empty if nothing is."""
    try:
        content = path.read_bytes()
        found = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        found.load_verify_locations(cafile=path)
    except ssl.SSLError:
        return "holds no certificate: it must be a PEM file, with -----BEGIN CERTIFICATE----- before each"
    except OSError as error:
        return f"{error.strerror or error}: name a PEM file that this account may read"
    if b"PRIVATE KEY-----" in content:
        return "holds a private key, and every workspace could read it: leave the certificates alone in it"
    if len(content) > _LARGEST_BUNDLE:
        return f"has over {_LARGEST_BUNDLE >> 20} MiB: name your own authorities, the public ones are added"
    if not found.get_ca_certs():
        return "holds no authority's certificate (CA:TRUE), but a server's: name the authority that issued it"
    return ""


_LARGEST_BUNDLE = 4 << 20

Seconds = Annotated[float, Field(gt=0, allow_inf_nan=False), Must("a number of seconds above 0", "30")]
IdleSeconds = Annotated[
    float, Field(gt=0, le=30, allow_inf_nan=False), Must("a number of seconds above 0 and at most 30", "15")
]
ActiveSeconds = Annotated[
    float, Field(gt=0, le=2, allow_inf_nan=False), Must("a number of seconds above 0 and at most 2", "1")
]
SecondsOrNever = Annotated[int, Field(ge=0), Must("a whole number of seconds, or 0 for never", "3600")]
WholeSeconds = Annotated[int, Field(ge=0), Must("a whole number of seconds", "7200")]
Count = Annotated[int, Field(ge=1), Must("a whole number of 1 or more", "3")]
CountOrNone = Annotated[int, Field(ge=0), Must("a whole number, or 0 for no limit", "100")]
Prefix = Annotated[str, Field(min_length=1, pattern=r"^[\x21-\x7e]+$"), Must("printable, without blanks", "codehub:")]
Label = Annotated[
    str,
    Field(max_length=40, pattern=r"^[a-z0-9]([a-z0-9-]*[a-z0-9])?$"),
    Must("lower-case letters, digits and inner hyphens, at most 40", "team-a"),
]
KeyPrefix = Annotated[
    str,
    Field(pattern=r"^([A-Za-z0-9_-][A-Za-z0-9._-]*/)*$"),
    Must("empty, or folder names each ended by a slash", "codehub/"),
]
ArchiveAddress = Annotated[
    str, Field(pattern=r"^(file:///|s3://)[^\s/]"), Must("a bucket or a local directory", "s3://codehub-archives")
]
CommandLine = Annotated[
    str,
    AfterValidator(_shell_words),
    Must("a command line that names {socket}", "code-server --auth none --socket {socket} {home}"),
]
SocketAddress = Annotated[
    str, Field(pattern=r"^(\d{1,3}(\.\d{1,3}){3}|localhost):\d{1,5}$"), Must("an address and a port", "127.0.0.1:9464")
]
Upstream = Annotated[
    str,
    Field(pattern=r"^([A-Za-z0-9]([A-Za-z0-9.-]*[A-Za-z0-9])?:\d{1,5}|unix:/.+)$"),
    Must("a host and a port, or a unix socket", "api:8001"),
]
Directory = Annotated[Path, AfterValidator(Path.expanduser), Must("a directory's path", "/srv/codehub")]
PostgresAddress = Annotated[
    SecretStr,
    _matching(r"postgres(ql)?(\+asyncpg)?://."),
    Must("the address of a PostgreSQL database", "postgresql://codehub:PASSWORD@db/codehub"),
]
RedisAddress = Annotated[
    SecretStr, _matching(r"(rediss?|unix)://."), Must("the address of a Redis", "redis://:PASSWORD@redis:6379/0")
]
WebAddress = Annotated[
    SecretStr, AfterValidator(_web_address), Must("an http or https address", "https://hooks.example.com/codehub")
]
SiteAddress = Annotated[
    str,
    Field(pattern=r"^https?://[^\s/@?#]+/?$"),
    Must("an http or https address without a path", "https://hub.example.com"),
]
ProviderAddress = Annotated[
    str, Field(pattern=r"^https?://[^\s@?#]+$"), Must("the provider's issuer address", "https://login.example.com")
]
Hidden = Annotated[SecretStr, _matching(r"\S+$"), Must("the secret, without blanks", "…")]
EncryptionKeys = Annotated[
    SecretStr,
    _matching(r"[A-Za-z0-9+/]{43}=(?:[\s,]+[A-Za-z0-9+/]{43}=)*\s*$"),
    Must("32 bytes in base64, several with commas between", "$(codehub admin secrets new-key)"),
]
FileName = Annotated[Path, AfterValidator(Path.expanduser), Must("a file's path", "/run/secrets/codehub-keys")]
WorkspacePattern = Annotated[
    str,
    Field(pattern=r"^https?://[^\s@?#]*\{(slug|id)\}[^\s@?#]*$"),
    Must("an address that names {slug} or {id}", "https://{slug}.ws.example.com/"),
]
Guests = Annotated[
    str,
    Field(pattern=r"^\s*[^\s@,]*@[^\s@,]+(\s*,\s*[^\s@,]*@[^\s@,]+)*\s*$"),
    Must("email addresses and @domains, with commas between", "ann@partner.org, @example.com"),
]
Proxies = Annotated[
    str, AfterValidator(_addresses), Must("IP addresses or networks, with commas between", "10.0.0.7, 10.1.0.0/16")
]
Reachable = Annotated[
    str,
    AfterValidator(_reachable),
    Must("IPv4 networks, or addresses with a port, with commas between", "10.1.0.0/16, 192.168.1.10:3000"),
]
ExtensionGallery = Annotated[
    str,
    AfterValidator(_gallery),
    Must(
        "an extension gallery's address, or a JSON object with its serviceUrl",
        "https://extensions.example.com/vscode/gallery",
    ),
]
File = Annotated[Path, AfterValidator(Path.expanduser), Must("a file's path", "/etc/codehub/authorities.pem")]
PathMode = Annotated[Literal["auto", "on", "off"], Must("auto, on or off", "off")]
AccessLog = Annotated[Literal["off", "errors", "all"], Must("off, errors or all", "all")]
Runtime = Annotated[Literal["process", "docker", "kubernetes"], Must("process, docker or kubernetes", "kubernetes")]
Ide = Annotated[Literal["code-server", "jupyterlab"], Must("code-server or jupyterlab", "jupyterlab")]
Firewall = Annotated[Literal["ours", "operator"], Must("ours or operator", "ours")]
EngineAddress = Annotated[
    str, Field(pattern=r"^(unix:///|tcp://)\S+$"), Must("a Docker engine's address", "tcp://engine.example.com:2376")
]
ImageName = Annotated[str, Field(pattern=r"^[^\s]+$"), Must("an image's name", "registry.example.com/codehub:1")]
NetworkName = Annotated[
    str,
    Field(max_length=60, pattern=r"^[A-Za-z0-9][A-Za-z0-9_.-]*$"),
    Must("a network's name", "codehub-workspaces"),
]
ObjectName = Annotated[
    str,
    Field(max_length=253, pattern=r"^[a-z0-9]([a-z0-9.-]*[a-z0-9])?$"),
    Must("a name as Kubernetes has them", "codehub"),
]
ObjectNames = Annotated[
    str,
    Field(pattern=r"^\s*[a-z0-9]([a-z0-9.-]*[a-z0-9])?(\s*,\s*[a-z0-9]([a-z0-9.-]*[a-z0-9])?)*\s*$"),
    Must("names as Kubernetes has them, with commas between", "registry, other-registry"),
]
AccessMode = Annotated[
    Literal["ReadWriteOnce", "ReadWriteOncePod", "ReadWriteMany"],
    Must("ReadWriteOnce, ReadWriteOncePod or ReadWriteMany", "ReadWriteOnce"),
]
PullPolicy = Annotated[
    Literal["IfNotPresent", "Always", "Never"], Must("IfNotPresent, Always or Never", "IfNotPresent")
]
Switch = Annotated[bool, Must("0 or 1", "1")]
Cores = Annotated[float, Field(gt=0, allow_inf_nan=False), Must("a number of cores above 0", "2")]
LogFormat = Annotated[Literal["auto", "json", "console"], Must("auto, json or console", "json")]
LogLevel = Annotated[Literal["debug", "info", "warning", "error"], Must("debug, info, warning or error", "info")]


class Settings(BaseSettings):
    model_config = SettingsConfigDict(
        env_ignore_empty=True,
        extra="ignore",
        frozen=True,
        validate_by_name=True,
        validate_by_alias=True,
        validate_default=True,
    )

    database_url: PostgresAddress = Field(
        validation_alias="CODEHUB_DATABASE_URL",
        description="Where what is desired and what was observed is kept. `codehub up` brings its own.",
    )
    redis_url: RedisAddress = Field(
        validation_alias="CODEHUB_REDIS_URL",
        description="The bus for wake-ups, events and activity. Losing it loses no data. `codehub up` brings its own.",
    )
    data_dir: Directory = Field(
        Path("~/.local/share/codehub"),
        validation_alias="CODEHUB_DATA_DIR",
        description="What this machine keeps: the embedded databases, the process runtime's volumes, local archives.",
    )
    archive_url: ArchiveAddress | None = Field(
        None,
        validation_alias="CODEHUB_ARCHIVE_URL",
        description="Where homes sleep. Unset: `archives` in the data directory. For s3:// also AWS_ACCESS_KEY_ID, "
        "AWS_SECRET_ACCESS_KEY, AWS_REGION (us-east-1), and CODEHUB_S3_ENDPOINT where it is not Amazon's.",
    )
    archive_prefix: KeyPrefix = Field(
        "",
        validation_alias="CODEHUB_ARCHIVE_PREFIX",
        description="Before every archive's key, for a bucket that is shared.",
    )
    runtime: Runtime = Field("process", validation_alias="CODEHUB_RUNTIME", description="What runs the workspaces.")
    docker_host: EngineAddress | None = Field(
        None,
        validation_alias="DOCKER_HOST",
        description="The docker runtime's engine. Unset: this machine's, at /var/run/docker.sock.",
    )
    docker_tls_verify: Switch = Field(
        False,
        validation_alias="DOCKER_TLS_VERIFY",
        description="A `tcp://` engine is spoken to by TLS, both ways proven.",
    )
    docker_cert_path: Directory | None = Field(
        None,
        validation_alias="DOCKER_CERT_PATH",
        description="Where ca.pem, cert.pem and key.pem for that are. Unset: `~/.docker`.",
    )
    workspace_image: ImageName = Field(
        "codehub-workspace:latest",
        validation_alias="CODEHUB_WORKSPACE_IMAGE",
        description="What a container runs whose template names no image. `make images` builds it.",
    )
    codehub_image: ImageName = Field(
        "codehub:latest",
        validation_alias="CODEHUB_IMAGE",
        description="Our own image, which runs the storage jobs in containers and isolates the network of workspaces.",
    )
    docker_network: NetworkName | None = Field(
        None,
        validation_alias="CODEHUB_DOCKER_NETWORK",
        description="The network of workspaces, which we make. Unset: `codehub-` and our install id.",
    )
    docker_isolation: Firewall = Field(
        "ours",
        validation_alias="CODEHUB_DOCKER_ISOLATION",
        description="Who keeps workspaces from private networks and the engine's machine: `ours` puts rules into its "
        "packet filter, without which nothing starts; `operator` leaves that to you.",
    )
    docker_reachable: Reachable | None = Field(
        None,
        validation_alias="CODEHUB_DOCKER_REACHABLE",
        description="Private networks that workspaces may reach all the same, such as your own git server's. What is "
        "on the engine's own machine, or in another container of it, is reached only if named with its TCP port "
        "(`192.168.1.10:3000`): a network opens nothing there.",
    )
    docker_job_network: NetworkName = Field(
        "host",
        validation_alias="CODEHUB_DOCKER_JOB_NETWORK",
        description="Where storage jobs reach the object store from; they have none if the archives are a directory.",
    )
    kubernetes_context: Annotated[str, Must("a context of the kubeconfig", "staging")] | None = Field(
        None,
        validation_alias="CODEHUB_KUBERNETES_CONTEXT",
        description="Which context of the kubeconfig the kubernetes runtime uses; KUBECONFIG says where that is. "
        "Unset: its current one, or inside of a pod the pod's service account.",
    )
    kubernetes_namespace: ObjectName | None = Field(
        None,
        validation_alias="CODEHUB_KUBERNETES_NAMESPACE",
        description="The namespace of workspaces. Unset: the pod's own, or that of the kubeconfig's context.",
    )
    kubernetes_storage_class: ObjectName | None = Field(
        None,
        validation_alias="CODEHUB_KUBERNETES_STORAGE_CLASS",
        description="The storage class of homes whose template names none. Unset: the cluster's default.",
    )
    kubernetes_disk_bytes: Count = Field(
        10 << 30,
        validation_alias="CODEHUB_KUBERNETES_DISK_BYTES",
        description="The size of a home's claim whose template says nothing.",
    )
    kubernetes_access_mode: AccessMode = Field(
        "ReadWriteOnce",
        validation_alias="CODEHUB_KUBERNETES_ACCESS_MODE",
        description="The access mode of homes' claims.",
    )
    kubernetes_reachable: Reachable | None = Field(
        None,
        validation_alias="CODEHUB_KUBERNETES_REACHABLE",
        description="Private networks that workspaces may reach all the same, such as your own git server's, or single "
        "addresses with a TCP port.",
    )
    kubernetes_scheduling_timeout: Seconds = Field(
        1800,
        validation_alias="CODEHUB_KUBERNETES_SCHEDULING_TIMEOUT",
        description="How long a workspace waits for a node that has room for it.",
    )
    kubernetes_creation_timeout: Seconds = Field(
        900,
        validation_alias="CODEHUB_KUBERNETES_CREATION_TIMEOUT",
        description="How long a node may take to mount a workspace's volume and to make its container. The time that "
        "its image takes to be pulled is not limited by this.",
    )
    kubernetes_pull_secrets: ObjectNames | None = Field(
        None,
        validation_alias="CODEHUB_KUBERNETES_PULL_SECRETS",
        description="Secrets of the namespace with which images are pulled; templates may name more.",
    )
    kubernetes_pull_policy: PullPolicy = Field(
        "IfNotPresent",
        validation_alias="CODEHUB_KUBERNETES_PULL_POLICY",
        description="When the cluster's nodes pull an image.",
    )
    kubernetes_service_account: ObjectName | None = Field(
        None,
        validation_alias="CODEHUB_KUBERNETES_SERVICE_ACCOUNT",
        description="The service account of workspaces and storage jobs, whose token none of them is given. Unset: the "
        "namespace's default.",
    )
    workspace_cpu: Cores = Field(
        2, validation_alias="CODEHUB_WORKSPACE_CPU", description="Cores of a container whose template says nothing."
    )
    workspace_memory_bytes: Count = Field(
        2 << 30,
        validation_alias="CODEHUB_WORKSPACE_MEMORY_BYTES",
        description="Memory of a container whose template says nothing.",
    )
    workspace_pids: Count = Field(
        512,
        validation_alias="CODEHUB_WORKSPACE_PIDS",
        description="Processes and threads of a container whose template says nothing.",
    )
    ide: Ide = Field(
        "code-server",
        validation_alias="CODEHUB_IDE",
        description="The IDE of the process runtime: `code-server`, which we install, or the `jupyterlab` whose "
        "`jupyter-lab` is in our PATH ([more](../ide.md)). Images bring their own.",
    )
    ide_command: CommandLine | None = Field(
        None,
        validation_alias="CODEHUB_IDE_COMMAND",
        description="What the process runtime runs as the IDE. `{socket}`: where it must listen; `{home}`: the home. "
        "Unset: as CODEHUB_IDE says ([more](../ide.md)).",
    )
    ide_cache_dir: Directory | None = Field(
        None,
        validation_alias="CODEHUB_IDE_CACHE_DIR",
        description="Where code-server is installed, once, if no other IDE is named. "
        "Unset: `codehub` in XDG_CACHE_HOME, which is `~/.cache` if unset.",
    )
    ca_bundle: File | None = Field(
        None,
        validation_alias="CODEHUB_CA_BUNDLE",
        description="A PEM file of your own certificate authorities, which git, curl, node and Python trust inside "
        "workspaces besides the public ones ([more](../workspace-image.md)).",
    )
    extension_gallery: ExtensionGallery | None = Field(
        None,
        validation_alias="CODEHUB_EXTENSION_GALLERY",
        description="Where VS Code finds extensions, instead of Open VSX: an address laid out as Open VSX is, or the "
        "JSON object of code-server's EXTENSIONS_GALLERY ([more](../ide.md)).",
    )
    install_id: Label | None = Field(
        None,
        validation_alias="CODEHUB_INSTALL_ID",
        description="The label on everything we create; what lacks it is never touched. Unset: the database's own id.",
    )
    api_address: SocketAddress = Field(
        "127.0.0.1:8001",
        validation_alias="CODEHUB_API_ADDRESS",
        description="Where `codehub api` listens. The front door is what people reach; keep this one behind it.",
    )
    api_upstream: Upstream | None = Field(
        None,
        validation_alias="CODEHUB_API_UPSTREAM",
        description="Where `codehub proxy` finds the API. Unset: CODEHUB_API_ADDRESS.",
    )
    proxy_address: SocketAddress = Field(
        "127.0.0.1:8000",
        validation_alias="CODEHUB_PROXY_ADDRESS",
        description="Where `codehub proxy`, the front door, listens. Put TLS before it, or keep it on this machine.",
    )
    proxy_workers: Count = Field(
        2, validation_alias="CODEHUB_PROXY_WORKERS", description="Processes of one `codehub proxy`, on one port."
    )
    proxy_status_address: SocketAddress | None = Field(
        None,
        validation_alias="CODEHUB_PROXY_STATUS_ADDRESS",
        description="Where `codehub proxy` answers /healthz, /readyz and /metrics for its processes. Unset: nowhere.",
    )
    proxy_access_log: AccessLog = Field(
        "errors",
        validation_alias="CODEHUB_PROXY_ACCESS_LOG",
        description="Which requests the front door logs: none, those that failed, or all.",
    )
    proxy_trusted_proxies: Proxies | None = Field(
        None,
        validation_alias="CODEHUB_PROXY_TRUSTED_PROXIES",
        description="The proxies before `codehub proxy`, such as the one that ends TLS, whose X-Forwarded-For and "
        "X-Forwarded-Proto are believed. Name no address from which people or workspaces come. Unset: nowhere.",
    )
    proxy_connections_per_address: CountOrNone | None = Field(
        None,
        validation_alias="CODEHUB_PROXY_CONNECTIONS_PER_ADDRESS",
        description="Connections that one process of the front door keeps for one address (IPv6: for its /64), but for "
        "those of CODEHUB_PROXY_TRUSTED_PROXIES. 0: no limit. Unset: half of what its open files allow.",
    )
    proxy_connections_per_person: CountOrNone = Field(
        1000,
        validation_alias="CODEHUB_PROXY_CONNECTIONS_PER_PERSON",
        description="Connections to workspaces that one process of the front door keeps for one signed-in person, "
        "WebSockets included. 0: no limit.",
    )
    ssh_address: SocketAddress = Field(
        "127.0.0.1:2222",
        validation_alias="CODEHUB_SSH_ADDRESS",
        description="Where `codehub ssh-gateway` listens. `codehub up` takes its port from `--ssh-port`.",
    )
    ssh_host_key_file: FileName | None = Field(
        None,
        validation_alias="CODEHUB_SSH_HOST_KEY_FILE",
        description="The SSH gateway's private host key, which is made if it is not there. Several gateways behind one "
        "address need the same. Unset: `ssh_host_ed25519_key` in the data directory.",
    )
    ssh_connections_per_person: Count = Field(
        50,
        validation_alias="CODEHUB_SSH_CONNECTIONS_PER_PERSON",
        description="SSH connections that one gateway keeps for one person.",
    )
    proxy_response_timeout: Seconds = Field(
        4 * 3600,
        validation_alias="CODEHUB_PROXY_RESPONSE_TIMEOUT",
        description="How long the front door waits for a byte of an answer, its first (then 504) or the next. Long "
        "polls, quiet event streams and slow builds take their time; a workspace that stops ends them anyway.",
    )
    path_mode: PathMode = Field(
        "auto",
        validation_alias="CODEHUB_PATH_MODE",
        description="Serve workspaces at `/w/{id}/` of the platform's own host too. There a workspace's pages can act "
        "as whoever opened them, so `auto` does it on this machine's own addresses alone, and not behind a public URL.",
    )
    trusted_proxies: Proxies | None = Field(
        None,
        validation_alias="CODEHUB_TRUSTED_PROXIES",
        description="The front doors before `codehub api` whose X-Forwarded-For and X-Forwarded-Proto are believed. "
        "Workspaces of the process runtime can speak from 127.0.0.1. Unset: none; `codehub up` believes none.",
    )
    public_url: SiteAddress | None = Field(
        None,
        validation_alias="CODEHUB_PUBLIC_URL",
        description="How browsers reach us; only its pages may use a session's cookie. Unset: the host they name.",
    )
    workspace_url: WorkspacePattern = Field(
        "http://{slug}.localhost:8000/",
        validation_alias="CODEHUB_WORKSPACE_URL",
        description="The address of a workspace: `{slug}` or `{id}` is put in.",
    )
    oidc_issuer: ProviderAddress | None = Field(
        None,
        validation_alias="CODEHUB_OIDC_ISSUER",
        description="The OpenID provider that people may sign in with; it needs CODEHUB_PUBLIC_URL. Unset: nowhere.",
    )
    oidc_client_id: Prefix | None = Field(
        None,
        validation_alias="CODEHUB_OIDC_CLIENT_ID",
        description="Our name at that provider. Register `{CODEHUB_PUBLIC_URL}/api/v1/session/oidc/callback` there.",
    )
    oidc_client_secret: Hidden | None = Field(
        None,
        validation_alias="CODEHUB_OIDC_CLIENT_SECRET",
        description="Our secret at that provider. Unset: a public client, proven by PKCE alone.",
    )
    oidc_allowed: Guests | None = Field(
        None,
        validation_alias="CODEHUB_OIDC_ALLOWED",
        description="Who may come in from there, by an email that it has verified. Unset: everybody whom it knows.",
    )
    secrets_keys: EncryptionKeys | None = Field(
        None,
        validation_alias="CODEHUB_SECRETS_KEYS",
        description="The keys that people's secrets are encrypted with: the first encrypts, all decrypt "
        "([rotation](../OPERATIONS.md#peoples-secrets)). The same for `codehub api` and `codehub coordinator`. Unset: "
        "those of CODEHUB_SECRETS_KEYS_FILE; else `secrets.key` in the data directory, which `codehub up` makes.",
    )
    secrets_keys_file: FileName | None = Field(
        None,
        validation_alias="CODEHUB_SECRETS_KEYS_FILE",
        description="A file that holds those keys, one on each line. Unset: as CODEHUB_SECRETS_KEYS says.",
    )
    webhook_url: WebAddress | None = Field(
        None,
        validation_alias="CODEHUB_WEBHOOK_URL",
        description="Receives a POST for each notice to admins. Its address may hold a token and is never logged.",
    )
    log_format: LogFormat = Field(
        "auto", validation_alias="CODEHUB_LOG_FORMAT", description="`auto` is console on a terminal, else JSON lines."
    )
    log_level: LogLevel = Field("info", validation_alias="CODEHUB_LOG_LEVEL", description="The least that is logged.")

    coordinator_idle_interval: IdleSeconds = Field(
        15, description="Between two looks at a settled workspace (contract 2 allows 30 at most)."
    )
    coordinator_active_interval: ActiveSeconds = Field(
        1, description="Between two looks at a workspace on its way (contract 2 allows 2 at most)."
    )
    coordinator_active_duration: Seconds = Field(
        30, description="How long after a wake-up a workspace is looked at as if it were on its way."
    )
    coordinator_workers: Count = Field(16, description="Workspaces reconciled at the same time, one worker each.")
    coordinator_ttl_interval: Seconds = Field(
        60, description="Between two runs of the TTL runner, which also drains activity from Redis."
    )
    coordinator_gc_interval: Seconds = Field(4 * 3600, description="Between two runs of the garbage collector.")

    coordinator_usage_interval: Seconds = Field(
        60, description="Between two samples of what the running workspaces use; more if sampling takes long."
    )
    usage_metrics_per_workspace: Switch = Field(
        False,
        description="Whether /metrics names each running workspace: three more series for each of them.",
    )
    coordinator_retention_interval: Seconds = Field(3600, description="Between two sweeps of old records.")
    coordinator_status_address: SocketAddress | None = Field(
        None, description="Where the coordinator answers /healthz, /readyz and /metrics. Unset: nowhere."
    )

    reconciler_max_retries: Count = Field(3, description="Failed attempts of one operation before it is terminal.")
    reconciler_starting_timeout: Seconds = Field(300, description="STARTING's deadline; pulling the image not counted.")
    reconciler_stopping_timeout: Seconds = Field(300, description="STOPPING's deadline.")
    reconciler_archiving_timeout: Seconds = Field(1800, description="How long ARCHIVING may go without progress.")
    reconciler_restoring_timeout: Seconds = Field(1800, description="How long RESTORING may go without progress.")

    ttl_standby_seconds: SecondsOrNever = Field(
        600, description="Idle time after which a RUNNING workspace gives its compute back. 0 = never."
    )
    ttl_archive_seconds: SecondsOrNever = Field(
        1800, description="Time in STANDBY after which the home moves to the archive. 0 = never."
    )
    activity_flush_interval: Seconds = Field(30, description="Between two writes of activity from memory to Redis.")

    max_running_per_user: Count = Field(2, description="Running workspaces one person may have. Exact, not soft.")
    max_running_global: Count = Field(100, description="Running workspaces of all people together. Exact, not soft.")
    max_workspaces_per_user: CountOrNone = Field(
        100,
        description="Workspaces one person may have, running or not; deleted ones do not count. An undelete may exceed "
        "it: then nothing new is created until there is room. Exact, not soft. 0 = no limit.",
    )
    max_lifetime_seconds: SecondsOrNever = Field(
        0, description="The longest a workspace may run, leases and activity included. 0 = no limit."
    )

    max_keepalive_seconds: WholeSeconds = Field(
        24 * 3600, description="The longest that one `keepalive` holds off an idle stop."
    )

    gc_grace_seconds: WholeSeconds = Field(
        7200, description="Between marking something as garbage, which nobody can want back, and sweeping it."
    )
    gc_deleted_retention_seconds: WholeSeconds = Field(
        7 * 24 * 3600,
        description="The undo window: how long what a person gave up (a deleted workspace, a discarded home) is kept.",
    )
    gc_most_per_run: Count = Field(500, description="What one run may sweep at most; the rest goes with the next.")
    restore_points_kept: Count = Field(3, description="The newest restore points of a workspace that are protected.")

    browse_memory_bytes: Count = Field(
        256 << 20,
        validation_alias="CODEHUB_BROWSE_MEMORY_BYTES",
        description="What one API process may take to look into archives, all together; one archive half of it "
        "(about 80 bytes a file). A larger one can be downloaded whole, and not browsed.",
    )

    retention_ledger_seconds: SecondsOrNever = Field(
        180 * 24 * 3600, description="How long a workspace's events are kept; its newest 20 always are. 0 = for ever."
    )
    retention_audit_seconds: SecondsOrNever = Field(
        365 * 24 * 3600, description="How long the audit log is kept. 0 = for ever."
    )
    retention_idempotency_seconds: SecondsOrNever = Field(
        24 * 3600, description="How long a create that is sent again under its Idempotency-Key is known. 0 = for ever."
    )

    session_idle_seconds: Seconds = Field(
        7 * 24 * 3600, description="A session that nobody used for this long has ended."
    )
    session_lifetime_seconds: Seconds = Field(
        30 * 24 * 3600, description="Every session ends after this long; then people sign in again."
    )
    session_fresh_seconds: Seconds = Field(
        15 * 60,
        description="For this long after people proved who they are they may change accounts and make tokens; then "
        "they are asked for their password again, or sent to their provider.",
    )

    redis_channel_sse_prefix: Prefix = Field(
        "codehub:sse:", description="Channel of a person's events: this + user id."
    )
    redis_channel_wake_prefix: Prefix = Field("codehub:wake:", description="Channel of wake-ups: this + `wc`.")

    @property
    def minimum_ttl_seconds(self) -> float:
        """A shorter TTL could stop someone whose key press is still on its way to the database."""
        return self.activity_flush_interval + self.coordinator_ttl_interval + TTL_MARGIN_SECONDS

    @model_validator(mode="after")
    def _keys_are_in_one_place(self) -> Self:
        if self.secrets_keys is not None and self.secrets_keys_file is not None:
            raise ValueError("CODEHUB_SECRETS_KEYS and CODEHUB_SECRETS_KEYS_FILE are both set: unset one of them")
        return self

    @model_validator(mode="after")
    def _provider_is_whole(self) -> Self:
        missing = [
            name
            for name, value in (
                ("CODEHUB_OIDC_CLIENT_ID", self.oidc_client_id),
                ("CODEHUB_PUBLIC_URL", self.public_url),
            )
            if value is None
        ]
        if self.oidc_issuer is not None and missing:
            raise ValueError(f"CODEHUB_OIDC_ISSUER is set: set {' and '.join(missing)} too, or unset it")
        return self

    @model_validator(mode="after")
    def _ca_bundle_is_usable(self) -> Self:
        if self.ca_bundle is not None and (trouble := ca_bundle_trouble(self.ca_bundle)):
            raise ValueError(f"CODEHUB_CA_BUNDLE={str(self.ca_bundle)!r}: {trouble}")
        return self

    @model_validator(mode="after")
    def _ttls_outlast_activity(self) -> Self:
        ttls = {"TTL_STANDBY_SECONDS": self.ttl_standby_seconds, "TTL_ARCHIVE_SECONDS": self.ttl_archive_seconds}
        least = f"at least {self.minimum_ttl_seconds:g} (ACTIVITY_FLUSH_INTERVAL {self.activity_flush_interval:g}"
        least += f" + COORDINATOR_TTL_INTERVAL {self.coordinator_ttl_interval:g} + {TTL_MARGIN_SECONDS})"
        too_short = [
            f"{name}={ttl}: must be 0 (never) or {least}, else people are stopped while they type; "
            "raise it, or lower those intervals"
            for name, ttl in ttls.items()
            if 0 < ttl < self.minimum_ttl_seconds
        ]
        if too_short:
            raise ValueError("\n".join(too_short))
        return self


class SettingsError(Exception):
    """Settings that cannot be right: one line per problem, each saying what to do."""


def load_settings(**given: Any) -> Settings:  # noqa: ANN401 - each is checked against its field
    """The settings of the environment, overridden by what is given by field name."""
    try:
        return Settings(**given)
    except ValidationError as error:
        raise SettingsError("\n".join(_lines(error))) from None


def environment_name(field: str) -> str:
    alias = Settings.model_fields[field].validation_alias
    return alias if isinstance(alias, str) else field.upper()


def field_must(field: FieldInfo) -> Must | None:
    """The metadata of a field; an optional field has it inside the union."""
    inner = [m for arm in getattr(field.annotation, "__args__", ()) for m in getattr(arm, "__metadata__", ())]
    return next((m for m in [*field.metadata, *inner] if isinstance(m, Must)), None)


REPLACED = {
    "CODEHUB_DOCKER_WALLS": "CODEHUB_DOCKER_ISOLATION",
    "RECONCILER_INTERVAL": "COORDINATOR_ACTIVE_INTERVAL and COORDINATOR_IDLE_INTERVAL",
    "RECONCILER_RETRY_BACKOFF": "a wait that doubles from 1 s up to 5 minutes",
}
"""Settings of the specification or of earlier versions that have no effect here, and what stands in their place."""


def without_effect(environ: Mapping[str, str]) -> Iterator[str]:
    """One line for each variable that is set and does nothing: a setting that was replaced, or a misspelt one."""
    for name, successor in REPLACED.items():
        if environ.get(name):
            yield f"{name} is replaced by {successor}, and has no effect"
    yield from _misspelt(environ)


def _misspelt(environ: Mapping[str, str]) -> Iterator[str]:
    known = {environment_name(field) for field in Settings.model_fields}
    families = tuple({name.split("_")[0] + "_" for name in known})
    for name in sorted(environ):
        if not name.startswith(families) or name in known or name in REPLACED:
            continue
        if near := difflib.get_close_matches(name, known, 1, 0.9):
            yield f"{name} is set but is no setting; did you mean {near[0]}?"


def _lines(error: ValidationError) -> Iterator[str]:
    for problem in error.errors():
        if not problem["loc"]:
            yield str(problem["ctx"]["error"])
            continue
        field = _field_at(str(problem["loc"][0]))
        name, must = environment_name(field), field_must(Settings.model_fields[field])
        be, example = (must.be, must.example) if must else (problem["msg"], "")
        if problem["type"] == "missing":
            yield f"{name} is not set: give {be}, for example {name}={example}; or use 'codehub up', which needs none"
        else:
            secret = "SecretStr" in str(Settings.model_fields[field].annotation)
            value = "" if secret else f"={problem['input']!r}"
            yield f"{name}{value}: must be {be}, for example {name}={example}"


def _field_at(location: str) -> str:
    """The environment variable of a problem, which Pydantic names by alias or by field."""
    return next(f for f in Settings.model_fields if location in {f, environment_name(f)})
