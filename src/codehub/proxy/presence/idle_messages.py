"""The messages that a tab of VS Code sends while nobody touches it, as data.

They were seen in tabs left alone (tests/proxy/recording makes and keeps the recordings; a new code-server is checked by
recording anew). What is not listed counts as somebody's work: better one workspace kept too long than one stopped under
its user.
"""

import re
from typing import Final

CHANNELS: Final = frozenset((b"telemetry", b"logger"))
"""The channels of the management socket whose calls, `ping` among them, report and never do what somebody wants."""

CALLS: Final = frozenset(
    (
        (b"extensions", b"getExtensionsControlManifest"),  # every five minutes
        (b"remoteterminal", b"$updateTitle"),  # the program in a terminal's foreground has changed
    )
)
"""The calls on the management socket that do not count, as (channel, method)."""

OWN_FILES: Final = re.compile(rb'"(?:external|path|fsPath)":"[^"]*/User/workspaceStorage/')
"""The paths, in a call of `remoteFilesystem`, of the state that the workbench keeps for itself, some of it every few
seconds.
"""

EVENTS: Final = frozenset(
    (
        (b"remoteFilesystem", b"fileChange"),  # an open home changes each second, as the IDE touches files of its own
        (b"remoteterminal", b"$onDidChangeProperty"),  # titles, and what follows from them
        (b"remoteterminal", b"$onProcessOrphanQuestion"),
        (b"remoteterminal", b"$onPtyHostUnresponsiveEvent"),
        (b"remoteterminal", b"$onPtyHostResponsiveEvent"),
        (b"logger", b"onDidChangeLoggers"),
        (b"logger", b"onDidChangeVisibility"),
    )
)
"""The subscriptions on the management socket whose events do not count, as (channel, event)."""

_SIZE: Final = rb"[\x80-\xff]*[\0-\x7f]"
EVENT_SHAPES: Final = re.compile(
    rb"\x04" + _SIZE + rb"\x05" + _SIZE + rb'\{"resource":\{'  # an array of file changes
    rb"|\x05" + _SIZE + rb'\{"id":\d+,"property":\{'  # a terminal's property
)
"""The content of EVENTS, for a socket that was not there when they were subscribed to."""

REQUESTS: Final = frozenset(
    (
        b"$onFileEvent",  # the same file changes, passed on to the extensions
        b"$onFoundNewCandidates",  # ports that something listens on
        b"$onDidChangeWindowFocus",
        b"$publicLog",
        b"$publicLog2",
        # Terminals' titles.
        b"$acceptTerminalTitleChange",
        b"$acceptTerminalShellType",
        # Git looks again whenever a file has changed, which in a home that is a repository is always.
        b"$ensureActivation",
        b"$onDidChange",
        b"$onDidChangeHistoryProviderCurrentHistoryItemRefs",
        b"$progressEnd",
        b"$provideDecorations",
        b"$provideOriginalResource",
        b"$provideSecondaryOriginalResource",
        b"$setInputBoxPlaceholder",
        b"$setValidationProviderIsEnabled",
        b"$spliceResourceStates",
        b"$startProgress",
    )
)
"""The names of requests on the extension host's socket that do not count, either way."""

REQUEST_SHAPES: Final = re.compile(
    rb"\$onDidChangeWindowActive....\[false\]"  # active it becomes only by a key, a button or a touch
    rb'|\$fireCommandActivationEvent....\["setContext"\]'
    rb'|\$executeCommand....\["_setContext",',
    re.DOTALL,
)
"""The requests on the extension host's socket that do not count because of what they carry, after four bytes of its
length.
"""

HTTP: Final = re.compile(
    rb"/(?:_static|(?:stable|insider|oss)-[0-9a-f]{40}/static)/"  # the workbench's parts, some only when first needed
    rb"|/(?:stable|insider|oss)-[0-9a-f]{40}\?reconnectionToken="  # the sockets themselves, which are read
    rb"|/(?:healthz|manifest\.json|favicon\.ico|mint-key|update/check)(?:\?|$)"
)
"""The targets of plain HTTP requests that do not count."""

SOCKET: Final = re.compile(rb"[?&]reconnectionToken=")
"""The targets of VS Code's own sockets."""
