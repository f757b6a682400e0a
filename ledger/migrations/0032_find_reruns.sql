-- The turns that run another one again (protocol §6, rerun), by the turn that they name. No update of a row changes what is indexed.
CREATE INDEX inbox_reruns ON state.agent_inbox ((payload -> 'rerun' ->> 'of')) WHERE payload ? 'rerun';
