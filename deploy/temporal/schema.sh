#!/bin/sh
# Brings the tables of Temporal up to date in the two databases that deploy/postgres/init.sh made for the role temporal.
# Repeating it is harmless. SQL_PASSWORD is in the environment.
set -eu

for database in temporal:temporal temporal_visibility:visibility; do
  tool="temporal-sql-tool --plugin postgres12 --ep postgres -p 5432 -u temporal --db ${database%%:*}"
  $tool setup-schema -v 0.0
  $tool update-schema -d "/etc/temporal/schema/postgresql/v12/${database##*:}/versioned"
done
