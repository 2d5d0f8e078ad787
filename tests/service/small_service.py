"""The server, its gate and its admission around an application that only sleeps: what connections are tested with.

python small_service.py '{"port": 0, "queue": 4, "store": ..., "load_seconds": 0}'
"""

from __future__ import annotations

import json
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from limerank.service.admission import Admission
from limerank.service.bodies import check_length, chunks
from limerank.service.metrics import Metrics
from limerank.service.observing import Observed
from limerank.service.options import ServiceOptions
from limerank.service.running.access_log import Logs
from limerank.service.running.listening import address_of, listen
from limerank.service.running.process import Loaded, serve
from limerank.service.security.gate import Gate
from limerank.service.security.keys import KeyRing
from limerank.service.security.refusals import Application, Receive, Scope, Send


def sleeping(options: ServiceOptions, admission: Admission) -> Application:
    """Reads the whole body; POST /v1/rank sleeps so many seconds as X-Sleep says, in a slot, in a thread."""

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        headers = dict(scope["headers"])
        check_length(headers, options.body_bytes, "body_bytes")
        size = 0
        async for piece in chunks(receive, options.body_bytes, options.body_seconds, "body_bytes"):
            size += len(piece)
        if scope["path"] == "/v1/rank":
            seconds = float(headers.get(b"x-sleep", b"0"))
            await admission.run(lambda: time.sleep(seconds))
        large = b"x" * int(headers.get(b"x-large", b"0"))
        facts = {"running": admission.running, "waiting": admission.waiting, "bytes": size, "large": len(large)}
        body = json.dumps(facts).encode() + large
        await send({"type": "http.response.start", "status": 200, "headers": [(b"content-type", b"application/json")]})
        await send({"type": "http.response.body", "body": body})

    return app


def main(told: dict[str, Any]) -> int:
    store, load_seconds = Path(told.pop("store", tempfile.mkdtemp())), told.pop("load_seconds", 0.0)
    slots = told.pop("slots", 2)
    options = ServiceOptions(**told)
    listener = listen(options)
    address = address_of(listener)
    say({"bound": address})

    def load() -> Loaded:
        time.sleep(load_seconds)
        admission = Admission(slots, options.queue)
        gate = Gate(sleeping(options, admission), KeyRing(store), options)
        return Loaded(Observed(gate, Metrics()), [admission], admission.close, facts={"address": address})

    logs = Logs()
    try:
        return serve(listener, options, load, announce=say, access=logs.begin())
    finally:
        logs.end()


def say(facts: dict[str, Any]) -> None:
    sys.stdout.write(json.dumps(facts) + "\n")
    sys.stdout.flush()


if __name__ == "__main__":
    sys.exit(main(json.loads(sys.argv[1])))
