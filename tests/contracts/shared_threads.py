"""The event loop's own threads, all of them taken: whoever must not depend on them still gets on."""

import asyncio
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager


@contextmanager
def no_shared_thread() -> Iterator[None]:
    let = threading.Event()
    with ThreadPoolExecutor(1, thread_name_prefix="shared") as shared:
        asyncio.get_running_loop().set_default_executor(shared)
        shared.submit(let.wait)
        try:
            yield
        finally:
            let.set()
