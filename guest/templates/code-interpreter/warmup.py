# Cells that the interpreter runs before it is frozen, each as a user's cell would run, so that
# their code, caches and lazily loaded modules are there at the thaw (docs/kernel.md). They run with
# the user's rights in the user's home and must leave nothing behind.
# %%
1 + 1
# %%
x = [1, 2.5, "text", None, True, (1, 2), {"a": 1}, {1, 2}, b"bytes", 1j]
x
# %%
print("text", 1, 2.5, [1, 2])
print("part", end=" ")
import sys
sys.stdout.write("line\n")
sys.stderr.write("error\n")
sys.stdout.flush()
# %%
import asyncio, collections, contextlib, copy, csv, dataclasses, datetime, enum, functools, glob
import hashlib, heapq, io, itertools, json, logging, math, operator, os, pathlib, pickle, random, re
import shutil, statistics, string, subprocess, tempfile, textwrap, threading, time, typing, uuid
import urllib.parse, urllib.request, zipfile
from collections import Counter, defaultdict
import numpy as np
import pandas as pd
import matplotlib.pyplot as plt
import requests
# %% raises
1 / 0
# %% raises
def outer(n):
    return inner(n) + 1
def inner(n):
    values = {"a": n}
    return values["b"]
outer(3)
# %% raises
undefined_name
# %% raises
raise ValueError("text")
# %% raises
print("unfinished"
# %%
class Point:
    def __init__(self, x: float, y: float) -> None:
        self.x, self.y = x, y

    def __repr__(self) -> str:
        return f"Point({self.x}, {self.y})"

@dataclasses.dataclass
class Row:
    name: str
    value: float = 0.0

points = [Point(i, i ** 2) for i in range(5)]
rows = sorted((Row(f"n{i}", i / 3) for i in range(5)), key=lambda r: -r.value)
counts = Counter(c for c in "some words to count" if c != " ")
def fibonacci():
    a, b = 0, 1
    while True:
        yield a
        a, b = b, a + b
numbers = list(itertools.islice(fibonacci(), 20))
total = functools.reduce(operator.add, numbers)
text = f"{total:,} {math.pi:.3f} {datetime.datetime(2024, 1, 2):%Y-%m-%d} {rows[0]!r:>40}"
print(text, counts.most_common(2), points[:2])
points
# %%
assert json.loads(json.dumps({"a": [1, 2.5, None, True], "b": "\u00e9"}, indent=1))["a"][1] == 2.5
assert re.findall(r"(\w+)@(\w+)\.com", "a@b.com, c@d.com") == [("a", "b"), ("c", "d")]
re.sub(r"\s+", " ", "a  b\tc"), re.split(r"[,;]", "a,b;c"), textwrap.fill("words " * 30)
now = datetime.datetime.now()
(now - datetime.timedelta(days=1)).strftime("%Y-%m-%d %H:%M:%S"), datetime.date.fromisoformat("2024-02-29")
str(uuid.uuid4()), random.random(), random.choice([1, 2, 3]), random.sample(range(100), 5)
hashlib.sha256(b"text").hexdigest(), statistics.mean([1, 2, 3]), heapq.nsmallest(2, [3, 1, 2])
time.time(), time.sleep(0), os.getcwd(), sys.version, string.ascii_letters
# %%
folder = pathlib.Path(tempfile.mkdtemp())
path = folder / "table.csv"
with open(path, "w", newline="") as f:
    writer = csv.writer(f)
    writer.writerow(["city", "month", "sales", "when"])
    for i in range(60):
        writer.writerow([["Oslo", "Rome", "Bonn"][i % 3], i % 12 + 1, i * 1.5, f"2024-01-{i % 28 + 1:02d}"])
with open(path) as f:
    assert len(list(csv.DictReader(f))) == 60
(folder / "note.txt").write_text("text\n")
(folder / "note.txt").read_text(), sorted(p.name for p in folder.iterdir()), glob.glob(str(folder / "*"))
pickle.loads(pickle.dumps({"a": [1, 2]}))
df = pd.read_csv(path, parse_dates=["when"])
df.head()
# %%
df
# %%
df["sales"] = df["sales"].fillna(0)
df["double"] = df["sales"] * 2
df["rank"] = df["sales"].rank()
df["class"] = df["sales"].apply(lambda v: "high" if v > 40 else "low")
by_city = df.groupby("city")["sales"].agg(["mean", "sum", "count"])
pivot = df.pivot_table(index="city", columns="month", values="sales", aggfunc="sum")
merged = df.merge(by_city.reset_index(), on="city", how="left")
df[df["sales"] > 10].sort_values(["city", "sales"], ascending=[True, False]).reset_index(drop=True)
df.set_index("when")["sales"].resample("W").sum(), df["class"].value_counts(), df.describe()
pd.concat([df, df]).drop_duplicates(), df.melt(id_vars=["city"], value_vars=["sales"])
df["when"].dt.month_name(), df["city"].str.upper().str.contains("O"), df.isna().sum(), df.dtypes
merged.to_csv(folder / "merged.csv", index=False), df.to_json(), df.to_dict("records")
df.info()
pivot
# %%
by_city["sum"]
# %%
a = np.arange(12.0).reshape(3, 4)
m = a @ a.T + np.eye(3)
np.linalg.inv(m), np.linalg.eigh(m), np.linalg.solve(m, np.ones(3)), np.linalg.svd(a), np.linalg.det(m)
rng = np.random.default_rng(0)
rng.normal(size=10), rng.integers(0, 10, 5), np.random.rand(3), np.random.randn(3), np.random.randint(0, 9, 3)
a.mean(axis=0), a.std(), np.where(a > 5, a, 0), np.percentile(a, 50), np.linspace(0, 1, 5), np.sqrt(a)
np.concatenate([a, a]), np.unique([1, 1, 2]), a[a > 3], a.astype(int), np.sin(a), np.cumsum(a), np.dot(a, a.T)
a
# %%
from scipy import optimize, stats
stats.linregress([1, 2, 3, 4], [2, 4, 5, 8]), stats.ttest_ind([1, 2, 3], [2, 3, 5])
optimize.minimize(lambda v: (v[0] - 1) ** 2, [0.0]).x
# %%
fig, axes = plt.subplots(1, 2, figsize=(7, 3))
axes[0].plot([1, 2, 3], [1, 4, 9], "o-", label="squares")
axes[0].set_title("Title")
axes[0].set_xlabel("x")
axes[0].set_ylabel("y")
axes[0].legend()
axes[0].grid(True)
axes[1].bar(["a", "b", "c"], [3, 1, 2])
plt.tight_layout()
plt.show()
# %%
by_city["sum"].plot(kind="bar", title="Sum")
# %%
plt.figure()
plt.hist(np.random.randn(100), bins=10)
plt.scatter([1, 2], [3, 4])
plt.savefig(folder / "plot.png")
# %%
from IPython.display import HTML, Markdown, display
display(df.head(2), HTML("<b>x</b>"), Markdown("**x**"))
from PIL import Image, ImageDraw
image = Image.new("RGB", (32, 32), "white")
ImageDraw.Draw(image).line((0, 0, 31, 31), fill="black")
image.show()
image.save(str(folder / "image.png"))
image.resize((16, 16))
# %%
print(subprocess.run(["echo", "text"], capture_output=True, text=True).stdout)
subprocess.run("echo text; echo error >&2", shell=True, check=True)
os.write(1, b"raw\n")
# %%
!echo text
%timeit -n 1 -r 1 1 + 1
%cd -q .
# %%
%%bash
echo text
# %%
async def later(n):
    await asyncio.sleep(0)
    return n
await asyncio.gather(later(1), later(2))
# %%
asyncio.run(later(1))
# %%
with contextlib.suppress(KeyError):
    {}["a"]
try:
    int("a")
except ValueError as e:
    print(type(e).__name__, e)
t = threading.Thread(target=print, args=("thread",))
t.start()
t.join()
shutil.rmtree(folder)
logging.getLogger("warm").warning("text")
# %% first
import pandas as pd
pd.DataFrame({"k": [1, 2, 1], "v": [1.0, 2.0, 3.0]}).groupby("k").v.sum()
# %% first
import pandas as pd
df = pd.DataFrame({"name": ["a", "b", "a", "c"], "value": [1, 2, 3, 4]})
df.groupby("name")["value"].agg(["sum", "mean"]), df.describe(), df[df.value > 1].sort_values("value").head()
df
# %% first
import numpy as np
np.arange(1000.0).reshape(10, 100).sum(axis=0).mean()
# %% first
import math, json, re, random
total = sum(math.sqrt(i) for i in range(100))
print(f"{total:.3f}", json.dumps({"a": [1, 2]}), re.findall(r"\d+", "1 and 22"), random.random() < 2)
# %% first raises
def half(n):
    return n / 0
half(1)
