# SPDX-License-Identifier: Apache-2.0
"""Reads sales.csv, prints what was sold where, fits a trend, draws it. Runs in a sandbox."""
import matplotlib.pyplot as plt
import numpy as np
import pandas as pd

sales = pd.read_csv("sales.csv", parse_dates=["date"])
missing = sales["unit_price"].isna().sum()
sales["unit_price"] = sales["unit_price"].fillna(sales.groupby("product")["unit_price"].transform("median"))
sales["revenue"] = sales["units"] * sales["unit_price"]
print(f"{len(sales)} orders, {sales['date'].min():%Y-%m-%d} to {sales['date'].max():%Y-%m-%d}; "
      f"{missing} prices were missing and set to the product's median\n")

table = sales.pivot_table(index="product", columns="region", values="revenue", aggfunc="sum", margins=True,
                          margins_name="total")
print((table / 1000).round(1).to_string(), "\n(revenue in thousands)\n")

by_product = sales.groupby("product").agg(orders=("order", "count"), units=("units", "sum"),
                                          revenue=("revenue", "sum")).sort_values("revenue", ascending=False)
best = by_product.index[0]
share = by_product["revenue"].iloc[0] / by_product["revenue"].sum()
print(f"best seller: {best}, {share:.0%} of the revenue")

monthly = sales.groupby(sales["date"].dt.to_period("M"))["revenue"].sum() / 1000
months = np.arange(len(monthly))
slope, start = np.polyfit(months, monthly.to_numpy(), 1)
residual = monthly.to_numpy() - (slope * months + start)
r2 = 1 - residual.var() / monthly.to_numpy().var()
print(f"trend: {slope:+.2f} thousand a month (R² = {r2:.2f})")

figure, axes = plt.subplots(figsize=(8, 4))
axes.bar(months, monthly, color="#7aa6c2", label="revenue")
axes.plot(months, slope * months + start, color="#b03a2e", label=f"trend {slope:+.1f} a month")
axes.set_xticks(months[::3], [str(m) for m in monthly.index[::3]])
axes.set_ylabel("thousands")
axes.set_title("Revenue a month")
axes.legend()
figure.tight_layout()
figure.savefig("chart.png", dpi=110)
plt.show()
