# A worker that does jobs with pandas, one after the other: tables are made, joined, grouped, sorted, and written as text.
import io, os
import numpy, pandas
from serve import serve

rows, keys, written = (int(os.environ[name]) for name in ("ROWS", "KEYS", "WRITTEN"))
names = pandas.DataFrame({"key": range(keys), "name": ["name %d" % (n * 7919 % keys) for n in range(keys)]})

def work(n):
    draw = numpy.random.default_rng(n)
    frame = pandas.DataFrame({"key": draw.integers(0, keys, rows), "count": draw.integers(0, 1000, rows), "value": draw.random(rows)})
    joined = frame.merge(names, on="key")
    sums = joined.groupby("name").agg({"count": "sum", "value": ["mean", "std"]})
    newest = joined.sort_values(["count", "value"]).head(written)
    text = io.StringIO()
    newest.to_csv(text, index=False)
    return "%d %d %d" % (frame["count"].sum(), len(sums), len(text.getvalue().splitlines()))

serve("s0", work)
