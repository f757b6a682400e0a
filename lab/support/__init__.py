"""What both the lab and the tests use: servers that may be killed, proxies, power failures and a collector of spans."""
