"""A service and a program that asks it: a store, `limerank serve`, rankings, a click, a changed ranking, a new bundle.

Run it (`python examples/ask_a_service.py [FOLDER]`, about fifteen seconds). It writes below FOLDER only, or into a
temporary folder, and listens on a free port of this machine. It needs `pip install 'limerank[serve]'`; a program that
only asks needs `limerank[client]`, and no torch.
"""

# %% A small store. Yours comes from `limerank export`.
import atexit
import json
import subprocess
import sys
import tempfile
from pathlib import Path

import limerank as lr
from limerank.client import InvalidRequestError, ServiceConflictError

FOLDER = Path(sys.argv[1] if len(sys.argv) > 1 else tempfile.mkdtemp(prefix="limerank-example-"))
small = lr.SimulatedConfig(users=150, items=400, topics=6, sessions=8, slots=6, seed=3)
data = lr.Dataset.build(lr.simulate(small), out=FOLDER / "dataset", overwrite=True, quiet=True)
run = lr.train(lr.LimeMHA(links=8), data, epochs=2, max_history=50, out=FOLDER / "run", overwrite=True, quiet=True)
run.export(FOLDER / "store", quiet=True)

# %% A service, as another process; `--json` makes it say where it listens in a way that programs can read.
command = [sys.executable, "-m", "limerank", "serve", str(FOLDER / "store"), "--port", "0", "--json", "--no-access-log"]
service = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)  # noqa: S603
atexit.register(service.terminate)  # also if something below goes wrong
assert service.stdout is not None
address = json.loads(service.stdout.readline())["address"]

# %% A client keeps its connections; make one, and use it from everywhere.
context = {"device": "phone", "hour": 20}
with lr.Client(address, deadline_ms=5000) as client:
    served = client.info().served
    print(f"{served.model} with {served.items} items; requests may say {', '.join(served.context_features)}")

    before = client.rank("u7", limit=400, context=context)
    print("before:", [(item.id, round(item.score, 3)) for item in before.items[:3]], before.timing_ms)

    # %% A click, and which ranking showed the item: on disk when this returns, and read by the next ranking.
    clicked = before.items[-1].id
    client.add_event(
        "u7",
        clicked,
        type="click",
        features={"clicked": 1},
        request_id=before.request_id,
        position=len(before.items) - 1,
    )
    after = client.rank("u7", limit=400, context=context)
    moved = sum(old.id != new.id for old, new in zip(before.items, after.items, strict=True))
    print(f"after a click on {clicked}, {moved} of {len(after.items)} items stand elsewhere")
    assert after.user.history_used == before.user.history_used + 1

    # %% A mistake is an exception that holds the service's own words.
    try:
        client.rank("u7", context={"devise": "phone"})
    except InvalidRequestError as error:
        print(error)

    # %% A new bundle, sent, verified, activated while requests run, and taken back.
    old = served.bundle
    again = lr.train(lr.LimeMHA(links=4), data, epochs=1, out=FOLDER / "other", overwrite=True, quiet=True)
    path = again.publish(FOLDER / "elsewhere", quiet=True).path
    published = client.publish_bundle(path)
    print(f"diff: {client.diff_bundles(old, published.id).rankings}")
    client.activate_bundle(published.id, expected_current=old)
    assert client.rank("u7", limit=1).bundle == published.id
    try:
        client.activate_bundle(published.id, expected_current=old)  # somebody was faster
    except ServiceConflictError as error:
        print(error)
    client.roll_back()
    assert client.rank("u7", limit=1).bundle == old

# %% SIGTERM: it answers what is under way, and ends.
service.terminate()
assert service.wait(60) == 0
service.stdout.close()
print(f"everything is in {FOLDER}")
