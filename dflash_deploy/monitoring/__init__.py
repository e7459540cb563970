"""Recording rules, alerts and dashboards as typed data. `monitoring/` has the files that are generated from them.

python -m dflash_deploy.monitoring     writes monitoring/
"""
