"""People in the loop (protocol §13): approvals as policy, digests of actions, interrupts and their decisions."""
