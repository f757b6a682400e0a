"""Delegating calls (protocol §12): served by the bridge, answered by a report, or by the batch that they make."""
