"""The kubernetes runtime from the settings: which cluster and namespace, what its pods have in common, and whether it
can be used at all."""

import asyncio
import os
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager

from codehub.adapters.ca_bundle import with_system_authorities
from codehub.adapters.kubernetes import (
    Access,
    Cluster,
    KubernetesJobs,
    KubernetesRuntime,
    KubernetesSite,
    store_environment,
)
from codehub.adapters.kubernetes.cluster import PODS
from codehub.bootstrap.workspace_environment import ca_bundle, workspace_environment
from codehub.domain.errors import BackendError, CodeHubError
from codehub.ports.runtime import Resources
from codehub.settings import Settings, SettingsError


def cluster_of(settings: Settings) -> Cluster:
    return Cluster(Access("", settings.kubernetes_context or "", settings.kubernetes_namespace or ""))


async def kubernetes_site(settings: Settings, install: str, cluster: Cluster) -> KubernetesSite:
    own = ca_bundle(settings)
    return KubernetesSite(
        install_id=install,
        workspace_image=settings.workspace_image,
        codehub_image=settings.codehub_image,
        share=Resources(
            cpu=settings.workspace_cpu,
            memory_bytes=settings.workspace_memory_bytes,
            disk_bytes=settings.kubernetes_disk_bytes,
        ),
        storage_class=settings.kubernetes_storage_class,
        access_mode=settings.kubernetes_access_mode,
        pull_secrets=tuple(_words(settings.kubernetes_pull_secrets)),
        pull_policy=settings.kubernetes_pull_policy,
        service_account=settings.kubernetes_service_account,
        reachable=tuple(_words(settings.kubernetes_reachable)),
        own_namespace=cluster.access.own_namespace,
        scheduling_seconds=settings.kubernetes_scheduling_timeout,
        creation_seconds=settings.kubernetes_creation_timeout,
        env=workspace_environment(settings),
        ca_bundle=await asyncio.to_thread(with_system_authorities, own) if own else b"",
    )


def _words(text: str | None) -> list[str]:
    return [word.strip() for word in (text or "").split(",") if word.strip()]


@asynccontextmanager
async def kubernetes_runtime(settings: Settings, install: str) -> AsyncIterator[KubernetesRuntime]:
    cluster = cluster_of(settings)
    runtime = KubernetesRuntime(cluster, await kubernetes_site(settings, install, cluster))
    try:
        yield runtime
    finally:
        await runtime.close()
        await cluster.close()


def kubernetes_jobs(runtime: KubernetesRuntime, archive_url: str, environ: Mapping[str, str]) -> KubernetesJobs:
    return KubernetesJobs(runtime, archive_url, store_environment(archive_url, environ))


def must_reach_archives(settings: Settings, archive_url: str) -> None:
    """Raise SettingsError if pods could not reach the archives."""
    if settings.runtime != "kubernetes":
        return
    try:
        store_environment(archive_url, os.environ)
    except BackendError as error:
        raise SettingsError(str(error)) from error


async def why_not_kubernetes(settings: Settings) -> str | None:
    """Why workspaces cannot be pods, in one line; None if the cluster answers and shows us the pods of its
    namespace."""
    cluster = cluster_of(settings)
    try:
        await cluster.list(PODS)
    except CodeHubError as error:
        return str(error)
    finally:
        await cluster.close()
    return None


async def describe_cluster(settings: Settings) -> str:
    """Which cluster it is, for people."""
    cluster = cluster_of(settings)
    try:
        version, host, namespace = await cluster.version(), await cluster.host(), await cluster.namespace()
    finally:
        await cluster.close()
    return f"Kubernetes {version} at {host}, namespace {namespace}"


async def missing_network_policies(settings: Settings, install: str) -> list[str]:
    """The network policies around workspaces that are not there as they should be."""
    async with kubernetes_runtime(settings, install) as runtime:
        return await runtime.isolation.missing()


def addresses_beyond_reach(environ: Mapping[str, str]) -> dict[tuple[str, int], str]:
    """What no workspace may reach whatever the settings: the API server, as pods have it, and the clouds' metadata."""
    server = environ.get("KUBERNETES_SERVICE_HOST", "kubernetes.default.svc")
    port = int(environ.get("KUBERNETES_SERVICE_PORT", "443"))
    return {
        (server, port): "the Kubernetes API server",
        ("169.254.169.254", 80): "the cloud's metadata",
        ("168.63.129.16", 80): "Azure's WireServer",
    }
