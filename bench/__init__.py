"""Ratios beside their budgets, measured side by side in one run. Not a test."""
