"""Sample sizes, thresholds and budgets (theory.md section 6).

sample_sizes    single formulas, in exact arithmetic
budget          `Budget`, the numbers that algorithms need; `practical` makes one from the caller's own sizes
plan            `Setting` (a problem), `Plan` (a budget with its audit)
schedules       `paper`, `loops` (Theorem L), `sweep` (Theorem R)
orders, curves  quoted orders without constants, and curves over epsilon
"""
