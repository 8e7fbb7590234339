"""The only importer of the Kubernetes client (docs/specs/operator.md 5.1)."""

from .client import MANAGER, STATUS_MANAGER, Change, Identity, KubeClient, ObjectList
from .connect import ConnectError, Target
from .errors import (
    AlreadyExists,
    BadRequest,
    Cause,
    Conflict,
    Forbidden,
    Gone,
    Invalid,
    KubeError,
    NotFound,
    TooManyRequests,
    Unauthorized,
    Unavailable,
)
from .pods import pods_http
from .resources import Object, Resource

__all__ = [
    "MANAGER",
    "STATUS_MANAGER",
    "AlreadyExists",
    "BadRequest",
    "Cause",
    "Change",
    "Conflict",
    "ConnectError",
    "Forbidden",
    "Gone",
    "Identity",
    "Invalid",
    "KubeClient",
    "KubeError",
    "NotFound",
    "Object",
    "ObjectList",
    "Resource",
    "Target",
    "TooManyRequests",
    "Unauthorized",
    "Unavailable",
    "pods_http",
]
