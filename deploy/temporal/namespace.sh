#!/bin/sh
# Makes the namespace, once the server answers. TEMPORAL_ADDRESS is in the environment.
set -eu

tries=0
until temporal operator cluster health; do
  tries=$((tries + 1))
  [ "$tries" -lt 60 ] || exit 1
  sleep 2
done
temporal operator namespace describe -n default > /dev/null 2>&1 ||
  temporal operator namespace create -n default --retention 72h
