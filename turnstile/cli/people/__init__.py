"""`turnstile approvals`: what turns ask people, and what people decide."""
