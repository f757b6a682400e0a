"""Files: the verbs that announce, keep and remove them, and the rule that removes their bytes (protocol §22)."""
