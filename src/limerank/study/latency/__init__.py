"""`limerank study latency`: the paper's three sweeps by real engines, beside what the machine could do.

`direct` is the small form that the quickstart uses: rankers that were trained, called without an engine.
"""
