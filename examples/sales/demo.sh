#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# demo.sh THAWBOX OUTPUT-DIR: the analysis of sales.csv in a thawed sandbox, and what it cost.
set -eu
thawbox=$(realpath "$1")
here=$(cd "$(dirname "$0")" && pwd)
mkdir -p "$2" && cd "$2"

/usr/bin/python3 "$here/make_data.py" sales.csv
rm -f chart.png
echo "demo: sales.csv ($(($(wc -l <sales.csv) - 1)) orders) into a fresh sandbox, analysis.py in it, chart.png out"
start=$(date +%s%N)
rc=0
"$thawbox" run --json --put sales.csv --get chart.png "$here/analysis.py" >result.json || rc=$?
whole=$((($(date +%s%N) - start) / 1000000))
/usr/bin/python3 - "$whole" <<'END'
import json, os, sys
result = json.load(open("result.json"))
print("\n" + result["stdout"], end="")
if result["error"]:
    sys.exit("demo: FAILED: " + result["error"]["traceback"])
figures = sum("image/png" in r["data"] for r in result["results"])
if open("chart.png", "rb").read(8) != b"\x89PNG\r\n\x1a\n" or not figures:
    sys.exit("demo: FAILED: no chart came back")
t = result["timing"]
print(f"\ndemo: create {t['create_ms']:.1f} ms, first result {t['first_result_ms']:.0f} ms, whole {sys.argv[1]} ms")
print(f"demo: the chart is {os.path.abspath('chart.png')}")
END
exit $rc
