# what: Python with numpy, pandas, pyarrow and duckdb
# needs: python3:python3
# loaded: python3
# user: any
# limit_s: 900
# prepare: yes

venv=$CACHE/venv
if [ "$1" = prepare ] && [ ! -f "$venv/complete" ]; then
    python3 -m venv "$venv" && "$venv/bin/pip" install -q numpy pandas pyarrow duckdb > pip.log 2>&1 || {
        echo "pip cannot install the packages: $(tail -1 pip.log)"
        exit 77
    }
    touch "$venv/complete"
fi
[ "$1" != prepare ] || exit 0
cat > work.py <<'END'
import concurrent.futures, hashlib, numpy as np, pandas as pd, pyarrow as pa, pyarrow.compute as pc, pyarrow.parquet as pq, duckdb
pa.set_memory_pool(pa.system_memory_pool())
rng = np.random.default_rng(7)
a = rng.integers(0, 1000, (600, 600)); b = a.T.copy()
print("numpy", int((a @ b).trace()), int(np.sort(rng.integers(0, 10**9, 2_000_000))[::1000].sum()))
frame = pd.DataFrame({"k": rng.integers(0, 500, 300_000), "v": rng.integers(0, 10**6, 300_000)})
frame["s"] = frame["v"].astype(str)
groups = frame.groupby("k").agg(v=("v", "sum"), n=("s", "nunique"))
print("pandas", int(groups.v.sum()), int(groups.n.sum()), len(frame.merge(groups, on="k")))
table = pa.Table.from_pandas(frame)
pq.write_table(table, "t.parquet", row_group_size=20_000)
back = pq.read_table("t.parquet", use_threads=True)
print("pyarrow", back.equals(table), pc.sum(back["v"]).as_py(), len(pc.unique(back["s"])))
def query(n):
    db = duckdb.connect(); db.execute("set threads to 2")
    return db.execute(f"select count(*), sum(v), count(distinct s) from 't.parquet' where k % 7 = {n}").fetchone()
with concurrent.futures.ThreadPoolExecutor(4) as pool: print("duckdb", list(pool.map(query, range(7))))
END
"$venv/bin/python3" work.py
