"""limerank: rank tens of thousands of candidates per request, near the accuracy of cross-attention.

    import limerank as lr

    data = lr.Dataset.build(events, items=items, schema=lr.Schema(...), out="datasets/mine")
    run = lr.train(lr.LimeMHA(links=16), data, epochs=3, out="runs/mine")
    run.export("stores/mine")
    lr.Engine.open("stores/mine").rank("u1", limit=10)

Names are listed in `__init__.pyi` and loaded when they are first used: `import limerank` loads no torch.
"""

from typing import Any

import lazy_loader

from limerank.threads import sleep_while_waiting

sleep_while_waiting()  # before torch is loaded, or it has no effect

_load, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)


def __getattr__(name: str) -> Any:
    return _version() if name == "__version__" else _load(name)


def _version() -> str:
    from importlib.metadata import PackageNotFoundError, version

    try:
        return version("limerank")
    except PackageNotFoundError:  # running from a source tree that was never installed
        return "0.0.0+source"
