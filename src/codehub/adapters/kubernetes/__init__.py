"""Workspaces and storage jobs as pods of a Kubernetes cluster, in one namespace of it.

A pod is a workspace, a claim its home, a Job its storage job, and all are found again by their labels. What is seen is
kept current by watches. A node that falls silent leaves what ran on it unknown: nothing is started beside it.
"""

from codehub.adapters.kubernetes.cluster import Access, Cluster
from codehub.adapters.kubernetes.jobs import KubernetesJobs, store_environment
from codehub.adapters.kubernetes.manifests import KubernetesSite
from codehub.adapters.kubernetes.runtime import KubernetesRuntime

__all__ = ["Access", "Cluster", "KubernetesJobs", "KubernetesRuntime", "KubernetesSite", "store_environment"]
