"""`turnstile budget`: what turns and projects may spend, have spent, and get more of."""
